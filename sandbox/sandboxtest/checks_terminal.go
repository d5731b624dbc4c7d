package sandboxtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// terminalTime bounds a check that waits for what a terminal shows.
const terminalTime = 30 * time.Second

func terminalChecks() []check {
	return []check{
		{name: "a terminal is what was asked for", run: checkOnTerminal},
		{name: "keys of a terminal", run: checkTerminalKeys},
		{name: "jobs of a shell on a terminal", run: checkTerminalJobs},
		{name: "10 MiB on a terminal", memory: true, run: checkTerminalFlood},
		{name: "nothing on a terminal outlives its command", run: checkTerminalDaemons},
		{name: "a terminal can't be typed into from inside", run: checkTypeInside},
		{name: "a terminal is closed to other identities", run: checkTerminalIdentity},
	}
}

// typist is a command on a terminal of 24 by 80 that a check types into.
type typist struct {
	e       *env
	keys    *io.PipeWriter
	resizes chan sandbox.TerminalSize
	process sandbox.Process
	out     safeBuffer
	errOut  safeBuffer // must stay empty
	read    int        // of the output with LF line ends
}

// startOnTerminal starts a command on a terminal. The caller ends it, or ctx.
func (e *env) startOnTerminal(ctx context.Context, cmd sandbox.Command) (*typist, error) {
	r, w := io.Pipe()
	t := &typist{e: e, keys: w, resizes: make(chan sandbox.TerminalSize)}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Grace = r, &t.out, &t.errOut, testGrace
	cmd.Terminal = &sandbox.Terminal{TerminalSize: sandbox.TerminalSize{Rows: 24, Columns: 80}, Resizes: t.resizes}
	var err error
	if t.process, err = e.sb.Start(ctx, cmd); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	context.AfterFunc(ctx, func() { _ = w.Close() })
	return t, nil
}

// resize changes the size. A command that has ended takes none.
func (t *typist) resize(ctx context.Context, rows, columns uint16) error {
	select {
	case t.resizes <- sandbox.TerminalSize{Rows: rows, Columns: columns}:
		return nil
	case <-time.After(stuckTime):
		return errors.New("a size is not taken")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *typist) typeKeys(keys string) error {
	_, err := io.WriteString(t.keys, keys)
	return err
}

// text returns the output that await has not returned, with LF line ends.
func (t *typist) text() string {
	return strings.ReplaceAll(strings.TrimSuffix(t.out.String(), "\r"), "\r\n", "\n")[t.read:]
}

// await waits for a text and returns the output up to its end.
func (t *typist) await(ctx context.Context, want string) (string, error) {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if before, _, ok := strings.Cut(t.text(), want); ok {
			t.read += len(before) + len(want)
			return before + want, nil
		}
		if text := t.errOut.String(); text != "" {
			return "", fmt.Errorf("standard error has %q", text)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("no %q in %q: %w", want, t.text(), context.Cause(ctx))
		}
	}
}

// end ends the input, unless the command ends by itself, and waits.
func (t *typist) end(ctx context.Context, closeInput bool) (sandbox.Exit, error) {
	if closeInput {
		_ = t.keys.Close()
	}
	exit, err := waitProcess(ctx, t.process)
	_ = t.keys.Close()
	if err == nil && (exit.Kill.Left != 0 || exit.Stderr.Total != 0) {
		err = fmt.Errorf("%d processes left, %d bytes on stderr", exit.Kill.Left, exit.Stderr.Total)
	}
	return exit, err
}

// terminalFacts are the lines of the verb on-terminal.
const terminalFacts = `controlling terminal
terminal at 0
terminal at 1
terminal at 2
leads its session
owned by itself: true, others: 0
in the foreground
size 24 80
`

// checkOnTerminal checks size and ownership, 200 resizes, lines in UTF-8 and
// the end of input.
func checkOnTerminal(ctx context.Context, e *env) error {
	ctx, cancel := context.WithTimeout(ctx, terminalTime)
	defer cancel()
	t, err := e.startOnTerminal(ctx, sandbox.Command{Argv: probeArgv("on-terminal")})
	if err != nil {
		return err
	}
	facts, err := t.await(ctx, "ready\n")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(facts, terminalFacts+"name /dev/pts/") {
		return fmt.Errorf("the terminal is %q", facts)
	}
	for i := range uint16(200) {
		if err := t.resize(ctx, i+1, 2*i+1); err != nil {
			return err
		}
	}
	if _, err := t.await(ctx, "size 200 399\n"); err != nil {
		return err
	}
	if err := t.typeKeys("grüßß\x7fe 世界\n"); err != nil {
		return err
	}
	if _, err := t.await(ctx, `line "grüße 世界"`); err != nil {
		return err
	}
	if err := t.typeKeys("rest"); err != nil {
		return err
	}
	exit, err := t.end(ctx, true)
	if err == nil && (exit.Status.Code != 7 || !strings.HasSuffix(t.text(), "line \"rest\"\n")) {
		err = fmt.Errorf("at the end of input: %s, %q", exit.Status, t.text())
	}
	return err
}

func checkTerminalKeys(ctx context.Context, e *env) error {
	ctx, cancel := context.WithTimeout(ctx, terminalTime)
	defer cancel()
	for keys, want := range map[string]sandbox.ExitStatus{
		"\x03": {Code: -1, Signal: 2}, "\x04": {Code: 7},
	} {
		t, err := e.startOnTerminal(ctx, sandbox.Command{Argv: probeArgv("on-terminal")})
		if err != nil {
			return err
		}
		if _, err = t.await(ctx, "ready\n"); err != nil {
			return err
		}
		if err := t.typeKeys(keys); err != nil {
			return err
		}
		exit, err := t.end(ctx, false)
		if err != nil {
			return err
		}
		if exit.Status != want || strings.Contains(t.text(), "line") {
			return fmt.Errorf("%q: %s, %q; want %s", keys, exit.Status, t.text(), want)
		}
	}
	return nil
}

// checkTerminalJobs stops, resumes and interrupts a shell's job.
func checkTerminalJobs(ctx context.Context, e *env) error {
	ctx, cancel := context.WithTimeout(ctx, terminalTime)
	defer cancel()
	t, err := e.startOnTerminal(ctx, sandbox.Command{Argv: []string{"sh", "-i"}, Variables: []string{"PS1=go: ", "ENV=", "TERM=dumb"}})
	if err != nil {
		return err
	}
	for _, step := range []struct{ keys, shows string }{
		{"", "go: "},
		{probeArgv()[0] + " on-terminal\n", "ready\n"},
		{"\x1a", "Stopped"},
		{"", "go: "},
		{"fg\n", "on-terminal"},
		{"", "\n"},
		{"again\n", `line "again"` + "\n"},
		{"\x03", "go: "},
		{"echo status $?\n", "status 130\n"},
		{"exit 9\n", ""},
	} {
		if err := t.typeKeys(step.keys); err != nil {
			return err
		}
		if _, err := t.await(ctx, step.shows); err != nil {
			return fmt.Errorf("after %q: %w", step.keys, err)
		}
	}
	exit, err := t.end(ctx, false)
	if err == nil && exit.Status.Code != 9 {
		err = fmt.Errorf("the shell ends with %s", exit.Status)
	}
	return err
}

func checkTerminalFlood(ctx context.Context, e *env) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const size = 10 << 20
	t, err := e.startOnTerminal(ctx, sandbox.Command{Argv: probeArgv("flood-terminal", strconv.Itoa(size))})
	if err != nil {
		return err
	}
	exit, err := t.end(ctx, false)
	if err != nil {
		return err
	}
	want := make([]byte, size)
	_, _ = (&probing.Pattern{}).Read(want)
	sum := sha256.Sum256(want)
	if got := t.out.String(); got != string(want) || exit.Stdout.Total != size || exit.Stdout.SHA256 != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("%d bytes came, %d are told, of %d", len(got), exit.Stdout.Total, size)
	}
	return nil
}

// checkTerminalDaemons leaves daemons in sessions of their own that ignore
// SIGTERM and SIGHUP, by a cancellation and by an end.
func checkTerminalDaemons(ctx context.Context, e *env) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, stay := range []bool{true, false} {
		m := newMarker()
		argv := probeArgv("daemons", "3", m)
		if stay {
			argv = append(argv, "stay")
		}
		runCtx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		t, err := e.startOnTerminal(runCtx, sandbox.Command{Argv: argv})
		if err != nil {
			return err
		}
		if _, err := t.await(ctx, "ready\n"); err != nil {
			return err
		}
		if stay {
			cancel(errTest)
		}
		exit, err := t.end(ctx, false)
		if err != nil {
			return err
		}
		if exit.Kill.Killed < 3 || exit.Status.Cancelled != stay {
			return fmt.Errorf("stay %t: %s, kill %+v", stay, exit.Status, exit.Kill)
		}
		if err := e.expectGone(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// checkTypeInside: the control types on the host, where only the kernel's
// setting can refuse it.
func checkTypeInside(ctx context.Context, e *env) error {
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("type-inside"), Terminal: &sandbox.Terminal{}})
	if err != nil {
		return err
	}
	if r.out != "EPERM\r\n" {
		return fmt.Errorf("typing inside is answered with %q", r.out)
	}
	control, err := onTerminal(ctx, e, "type-inside")
	if err == nil && control != "ok\n" && control != "EIO\n" { // EIO: dev.tty.legacy_tiocsti is 0
		err = fmt.Errorf("positive control: on the host typing is answered with %q", control)
	}
	return err
}

// checkTerminalIdentity opens an identity's terminal from outside. The control
// is a command of the same identity.
func checkTerminalIdentity(ctx context.Context, e *env) error {
	if e.target.SingleUID {
		return attestsLoss(e, "identity")
	}
	ctx, cancel := context.WithTimeout(ctx, terminalTime)
	defer cancel()
	for owner, other := range []int{1, 0} {
		t, err := e.startOnTerminal(ctx, sandbox.Command{Argv: probeArgv("on-terminal"), Dir: sandbox.WorkspaceDir, Identity: owner})
		if err != nil {
			return err
		}
		facts, err := t.await(ctx, "ready\n")
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(facts, "name ")
		name, _, _ = strings.Cut(name, "\n")
		for _, identity := range []int{owner, other} {
			r, err := e.runAs(ctx, identity, "exist", name)
			if err != nil {
				return err
			}
			w, err := e.runAs(ctx, identity, "writable", name)
			if err != nil {
				return err
			}
			if opened := slices.Contains(splitLines(r.out+w.out), name); opened != (identity == owner) {
				return fmt.Errorf("identity %d opens the terminal of %d: %t", identity, owner, opened)
			}
		}
		if _, err := t.end(ctx, true); err != nil {
			return err
		}
	}
	return nil
}
