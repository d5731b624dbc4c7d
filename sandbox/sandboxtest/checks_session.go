//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
)

// sessionChecks: what sessions see of one another, beside and after each other.
func sessionChecks() []check {
	return []check{
		{name: "sessions see nothing of each other", run: checkStrangers},
		{name: "a fresh sandbox knows nothing of the last", fresh: true, run: checkFresh},
		{name: "the root's directories can't be replaced", run: checkReplace},
	}
}

// checkStrangers leaves every trace that a command can in one session and
// looks for it from another. The control looks from the first session itself.
func checkStrangers(ctx context.Context, e *env) (err error) {
	word := newMarker()
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, w, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("plant", word), Grace: testGrace})
	if err != nil {
		return err
	}
	planted := splitLines(strings.TrimSuffix(w.String(), "ready\n"))
	seen, err := e.expectOutput(ctx, "find", word)
	if err != nil {
		return err
	}
	if missing := subtract(planted, splitLines(seen)); len(missing) > 0 || len(planted) < 8 {
		return fmt.Errorf("positive control: %d traces, of which not found in the session itself: %q", len(planted), missing)
	}
	other := newEnv(e.target, filepath.Join(e.base, "other"))
	if err := other.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close(context.WithoutCancel(ctx))) }()
	found, err := other.expectOutput(ctx, "find", word)
	if err != nil {
		return err
	}
	if found != "" {
		return fmt.Errorf("another session finds %q", splitLines(found))
	}
	cancel()
	if _, err := waitProcess(ctx, p); err != nil {
		return err
	}
	// The output of one never shows in the other's.
	mine, err := other.expectOutput(ctx, "args", "mine")
	if err == nil && mine != "mine" {
		err = fmt.Errorf("another session's output is %q", mine)
	}
	return err
}

func splitLines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

// subtract returns the elements of list that are not in other.
func subtract(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// checkFresh destroys a sandbox in which everything writable was written and
// makes another one of the same workspace: only the workspace's file is there.
func checkFresh(ctx context.Context, e *env) (err error) {
	word := newMarker()
	p, _, err := startReady(ctx, ctx, e, sandbox.Command{Argv: probeArgv("plant", word)})
	if err != nil {
		return err
	}
	if err := e.sb.Destroy(ctx); err != nil {
		return err
	}
	if _, err := waitProcess(ctx, p); err == nil {
		return errors.New("the command outlived its sandbox")
	}
	next := newEnv(e.target, e.base)
	if err := next.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.close(context.WithoutCancel(ctx))) }()
	if next.sb.ID() == e.sb.ID() {
		return fmt.Errorf("the container %s is used again", e.sb.ID())
	}
	found, err := next.expectOutput(ctx, "find", word)
	if err != nil {
		return err
	}
	if found != "file in /workspace\n" {
		return fmt.Errorf("the next sandbox finds %q, want only the control in the workspace", splitLines(found))
	}
	return nil
}

// checkReplace tries to put symlinks where a later start or exec of the container
// would mount or look (CVE-2025-31133 and its kin). The control is a directory of
// the workspace.
func checkReplace(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "mkdir", "replaceable"); err != nil {
		return err
	}
	out, err := e.expectOutput(ctx, "replace", "/dev", "/dev/null", "/dev/pts", "/dev/console", "/proc", "/proc/sys", "/sys", "/etc", "/etc/hosts",
		"/etc/passwd", "/tmp", "/run", sandbox.HomeDir, "/usr", "/bin", "/lib", sandbox.WorkspaceDir, "/.caisson", sandbox.GuestPath, "replaceable")
	if err != nil {
		return err
	}
	if out != "replaceable\n" {
		return fmt.Errorf("replaced: %q, want only the control", splitLines(out))
	}
	return nil
}
