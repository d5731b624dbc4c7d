package shell

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runnerFunc is a commandRunner that calls a function.
type runnerFunc func(ctx context.Context, cmd Command) (Result, error)

func (f runnerFunc) Run(ctx context.Context, cmd Command) (Result, error) { return f(ctx, cmd) }

// hostRunner runs commands with the host's sh, without a sandbox, so that tests
// see real exit codes, signals and streams. It keeps the whole output.
type hostRunner struct{ dir string }

func (h hostRunner) Run(ctx context.Context, cmd Command) (Result, error) {
	limit, cancel := context.WithTimeout(ctx, cmd.Timeout)
	defer cancel()
	c := exec.CommandContext(limit, "sh", append([]string{"-c", "--", cmd.Script, "caisson"}, cmd.Args...)...)
	c.Dir = h.dir
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = io.MultiWriter(cmd.Stdout, &stdout), io.MultiWriter(cmd.Stderr, &stderr)
	start := time.Now()
	err := c.Run()
	r := Result{Exit: sandbox.Exit{Wall: time.Since(start)}, Stdout: wholeCapture(stdout.Bytes()), Stderr: wholeCapture(stderr.Bytes())}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && limit.Err() == nil {
		return r, err
	}
	if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		r.Status.Code, r.Status.Signal = -1, int(status.Signal())
	} else {
		r.Status.Code = c.ProcessState.ExitCode()
	}
	if ctx.Err() != nil {
		r.Status.Cancelled = true
		return r, context.Cause(ctx)
	}
	r.Status.TimedOut = limit.Err() != nil
	return r, nil
}

func wholeCapture(text []byte) Capture {
	sum := sha256.Sum256(text)
	return Capture{Head: text, Total: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
}

// dispatcherFor returns a dispatcher with only the shell tool, which needs no
// approval, and a function that returns its events.
func dispatcherFor(t *testing.T, r commandRunner, opts Options) (*dispatch.Dispatcher, func() []dispatch.Event) {
	t.Helper()
	policy, err := policy.Preset("sandboxed")
	if err != nil {
		t.Fatal(err)
	}
	var events []dispatch.Event // Emit is called one at a time, and read after Round
	d, err := dispatch.New(dispatch.Options{Policy: policy, Emit: func(ev dispatch.Event) error {
		events = append(events, ev)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	factory, err := New(r, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Register(factory); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d, func() []dispatch.Event { return events }
}

func shellCalls(input string) []tools.Call {
	return []tools.Call{{ID: "tu_1", Name: Name, Input: json.RawMessage(input)}}
}

func resultText(r tools.Result) string {
	if len(r.Content) == 0 {
		return ""
	}
	return r.Content[0].Text
}
