package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

func commandChecks() []check {
	return []check{
		{name: "exit codes are exact", run: checkExitCodes},
		{name: "signals are reported", run: checkSignals},
		{name: "missing and unusable programs", shared: true, run: checkNotFound},
		{name: "environment is what was given", run: checkEnvironment},
		{name: "arguments arrive byte by byte", run: checkArguments},
		{name: "working directory", run: checkDir},
		{name: "invalid commands are refused", run: checkInvalid},
	}
}

func checkExitCodes(ctx context.Context, e *env) error {
	step := 1
	if e.target.OwnKernel || e.target.Brief {
		step = 15 // includes 0 and 255
	}
	for code := 0; code < 256; code += step {
		r, err := e.runProbe(ctx, "exit", strconv.Itoa(code))
		if err != nil {
			return err
		}
		if want := (sandbox.ExitStatus{Code: code}); r.Status != want {
			return fmt.Errorf("exit %d: status %+v", code, r.Status)
		}
	}
	return nil
}

// harmless are the signals that don't end a process by default (CHLD, CONT,
// STOP, TSTP, TTIN, TTOU, URG, WINCH), and two that the C library keeps.
var harmless = []int{17, 18, 19, 20, 21, 22, 23, 28, 32, 33}

func checkSignals(ctx context.Context, e *env) error {
	for sig := 1; sig <= 64; sig++ {
		if slices.Contains(harmless, sig) {
			continue
		}
		r, err := e.runProbe(ctx, "raise", strconv.Itoa(sig))
		if err != nil {
			return err
		}
		if want := (sandbox.ExitStatus{Code: -1, Signal: sig}); r.Status != want {
			return fmt.Errorf("raise %d: status %+v", sig, r.Status)
		}
	}
	return nil
}

func checkNotFound(ctx context.Context, e *env) error {
	for argv0, code := range map[string]int{
		"no-such-program":                127,
		"/workspace/no/such/program":     127,
		sandbox.WorkspaceDir:             126,
		sandbox.WorkspaceDir + "/" + ".": 126,
	} {
		r, err := e.run(ctx, sandbox.Command{Argv: []string{argv0}})
		if err != nil {
			return err
		}
		if r.Status.Code != code || r.errOut == "" {
			return fmt.Errorf("%s: %s, stderr %q; want code %d and a message", argv0, r.Status, r.errOut, code)
		}
	}
	return checkUnusable(ctx, e)
}

func checkUnusable(ctx context.Context, e *env) error {
	for _, f := range []struct {
		name, content string
		mode          os.FileMode
		codes         []int
	}{
		{"not-executable", "#!/bin/sh\nexit 0\n", 0o644, []int{126}},
		{"no-program", "\x00\x01\x02garbage", 0o755, []int{126}},
		{"no-interpreter", "#!/no/such/interpreter\n", 0o755, []int{126, 127}},
		{"empty", "", 0o755, []int{126}},
	} {
		path := filepath.Join(e.workspace, f.name)
		if err := os.WriteFile(path, []byte(f.content), f.mode); err != nil {
			return err
		}
		r, err := e.run(ctx, sandbox.Command{Argv: []string{sandbox.WorkspaceDir + "/" + f.name}})
		if err != nil {
			return err
		}
		if !slices.Contains(f.codes, r.Status.Code) || r.errOut == "" {
			return fmt.Errorf("%s: %s, stderr %q; want one of %v and a message", f.name, r.Status, r.errOut, f.codes)
		}
	}
	return nil
}

func checkEnvironment(ctx context.Context, e *env) error {
	env := []string{"PATH=/usr/bin", "EMPTY=", "EQ=a=b", "UTF=\u00fc"}
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("env"), Env: env})
	if err != nil {
		return err
	}
	if err := sameEnvironment(r.out, env); err != nil {
		return err
	}
	out, err := e.expectOutput(ctx, "env")
	if err != nil {
		return err
	}
	return sameEnvironment(out, sandbox.SetVariables(nil, sessionVariables))
}

// sameEnvironment names what differs, but no values: a leaked one may be
// secret.
func sameEnvironment(out string, want []string) error {
	if out == strings.Join(want, "\x00") {
		return nil
	}
	var extra []string
	for v := range strings.SplitSeq(out, "\x00") {
		if !slices.Contains(want, v) {
			name, _, _ := strings.Cut(v, "=")
			extra = append(extra, name)
		}
	}
	return fmt.Errorf("environment has %d bytes, not what was given; unexpected: %q", len(out), extra)
}

func checkDir(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "mkdir", "sub/below"); err != nil {
		return err
	}
	if _, err := e.expectOutput(ctx, "symlink", "/", "out"); err != nil {
		return err
	}
	for dir, want := range map[string]string{
		"":                     sandbox.WorkspaceDir,
		"/workspace/sub/below": "/workspace/sub/below",
	} {
		r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: dir})
		if err != nil {
			return err
		}
		if r.out != want {
			return fmt.Errorf("cwd with dir %q is %q, want %q", dir, r.out, want)
		}
	}
	for _, dir := range []string{"/workspace/missing", "/workspace/" + probeName, "/workspace/out", "/workspace/out/etc"} {
		if _, err := e.run(ctx, sandbox.Command{Argv: probeArgv("cwd"), Dir: dir}); !isInvalid(err) {
			return errorf("dir %q: error %w, want ErrInvalid", dir, err)
		}
	}
	return nil
}

func checkInvalid(ctx context.Context, e *env) error {
	for name, cmd := range map[string]sandbox.Command{
		"no argv":         {},
		"empty name":      {Argv: []string{""}},
		"NUL in argv":     {Argv: []string{"true", "a\x00b"}},
		"long argument":   {Argv: []string{"true", strings.Repeat("x", 128<<10+1)}},
		"NUL in env":      {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		"env without =":   {Argv: []string{"true"}, Env: []string{"A"}},
		"env without key": {Argv: []string{"true"}, Env: []string{"=a"}},
		"relative dir":    {Argv: []string{"true"}, Dir: "sub"},
		"dir outside":     {Argv: []string{"true"}, Dir: "/etc"},
		"dir with dots":   {Argv: []string{"true"}, Dir: "/workspace/../etc"},
		"proc dir":        {Argv: []string{"true"}, Dir: "/proc/self/fd/7"},
		"negative time":   {Argv: []string{"true"}, Timeout: -time.Second},
	} {
		if _, err := e.run(ctx, cmd); !isInvalid(err) {
			return errorf("%s: error %w, want ErrInvalid", name, err)
		}
	}
	return nil
}

// checkArguments sends arguments that could break quoting, splitting or
// decoding, and as much as the kernel accepts.
func checkArguments(ctx context.Context, e *env) error {
	args := []string{"", " ", "a b", "$(touch x)", "`x`", "'\"", "line\nline", "\xff\xfe", "\u202e", "-rf", "--", "*", strings.Repeat("x", 128<<10-1)}
	if err := e.expectAnswer(ctx, strings.Join(args, "\x00"), append([]string{"args"}, args...)...); err != nil {
		return err
	}
	var env []string
	for i := range 5000 {
		env = append(env, fmt.Sprintf("V%d=\xff\n=%d", i, i))
	}
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("env"), Env: env})
	if err != nil {
		return err
	}
	if err := sameEnvironment(r.out, env); err != nil {
		return fmt.Errorf("5,000 variables: %w", err)
	}
	// More than that must be refused, or be the program's own status, and do no
	// harm.
	huge := slices.Repeat([]string{strings.Repeat("y", 100<<10)}, 30)
	r, err = e.runProbe(ctx, append([]string{"args"}, huge...)...)
	if err == nil && r.Status.Code != 126 || err != nil && !isInvalid(err) {
		return errorf("3 MB of arguments: %s, %w; want ErrInvalid or code 126", r.Status, err)
	}
	return e.expectAnswer(ctx, "", "exit", "0")
}
