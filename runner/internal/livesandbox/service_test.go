package livesandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// serviceBed is a session's sandbox with a service.
type serviceBed struct {
	box      *Sandbox
	exec     *Executor
	backend  *fakesandbox.Backend
	crash    chan struct{} // closed to end the service
	running  chan struct{} // closed when it has started
	recorded chan struct{} // closed when the workspace is recorded

	mu       sync.Mutex
	warnings []string
}

func newServiceBed(t *testing.T, change func(*Options)) *serviceBed {
	t.Helper()
	b := &serviceBed{crash: make(chan struct{}), running: make(chan struct{}), recorded: make(chan struct{})}
	b.backend = &fakesandbox.Backend{Scripts: map[string]fakesandbox.Script{
		"ls": fakesandbox.WriteText("files\n"),
		"serve": func(ctx context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = cmd.Stdout.Write([]byte("the key is " + logKey + "\n"))
			close(b.running)
			select {
			case <-b.crash:
				return sandbox.ExitStatus{Code: 3}
			case <-ctx.Done():
				return sandbox.ExitStatus{Code: -1, Signal: 15}
			}
		},
	}}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	state := t.TempDir()
	if err := os.Mkdir(state+"/"+record.SpillDir, 0o700); err != nil {
		t.Fatal(err)
	}
	o := Options{
		Backend: b.backend, Fail: func(error) {},
		Spec: sandbox.Spec{Workspace: sandbox.Workspace{Path: dir.Name(), Dir: dir}, Setup: sandbox.Setup{Service: &sandbox.Service{Args: []string{"serve"}}}},
		Record: func(p record.Payload) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if w, ok := p.(record.Warning); ok {
				b.warnings = append(b.warnings, w.Message)
			}
			return nil
		},
	}
	if change != nil {
		change(&o)
	}
	b.box = New(t.Context(), o)
	b.exec = NewExecutor(b.box, ExecutorOptions{
		Dir: state, Secrets: []redact.Secret{{Name: "KEY", Value: logKey}}, AfterCommand: func(context.Context) {}, Log: zap.NewNop(),
		WaitRecorded: func(ctx context.Context) error {
			select {
			case <-b.recorded:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	})
	t.Cleanup(b.box.StopAndDestroy)
	return b
}

// run runs a command and returns what the model is told besides its output.
func (b *serviceBed) run(t *testing.T) string {
	t.Helper()
	r, err := b.exec.Run(t.Context(), shell.Command{Script: "ls", Command: sandbox.Command{Stdout: io.Discard, Stderr: io.Discard}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Notice
}

// TestServiceThatEnds: users and the model are told once of a service that ended, without secrets.
func TestServiceThatEnds(t *testing.T) {
	b := newServiceBed(t, nil)
	close(b.recorded)
	if notice := b.run(t); notice != "" {
		t.Errorf("told %q of a service that runs", notice)
	}
	close(b.crash)
	b.box.following.Wait()
	notice, again := b.run(t), b.run(t)
	if !strings.HasPrefix(notice, `Note: the service "serve" ended with exit code 3 after `) || !strings.Contains(notice, "the key is [") || strings.Contains(notice, logKey) || again != "" {
		t.Errorf("told %q, then %q", notice, again)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.warnings) != 1 || strings.Contains(b.warnings[0], logKey) || !strings.Contains(b.warnings[0], "is not started again") {
		t.Errorf("warnings %q", b.warnings)
	}
}

// TestServiceAndWorkspace: a service starts after the workspace is recorded, and has ended before the
// session looks for changes.
func TestServiceAndWorkspace(t *testing.T) {
	b := newServiceBed(t, nil)
	b.box.EnsureStarted()
	select {
	case <-b.running:
		t.Error("it started before the workspace was recorded")
	case <-b.box.current.ready:
		t.Error("the sandbox is ready before its service")
	default:
	}
	close(b.recorded)
	<-b.running
	b.exec.EndBackground()
	select {
	case <-b.box.current.sandbox.Service().Done():
	default:
		t.Error("it runs when the session looks at the workspace")
	}
	if notice := b.box.takeNotice(b.box.current); notice != "" || len(b.warnings) > 0 {
		t.Errorf("told %q, warnings %q: the session ended it", notice, b.warnings)
	}
}

// TestServiceAfterTheRun: no service starts after the run, even from a start that was in progress.
func TestServiceAfterTheRun(t *testing.T) {
	t.Run("again", func(t *testing.T) {
		b := newServiceBed(t, nil)
		close(b.recorded)
		b.run(t)
		b.exec.EndBackground()
		if err := b.box.startAgain(); err != nil {
			t.Fatal(err)
		}
		<-b.box.current.ready
		if err := b.box.StartUnguarded(); err != nil {
			t.Fatal(err)
		}
		<-b.box.current.ready
		for i, sb := range b.backend.Sandboxes {
			if (sb.Spec.Service != nil) != (i == 0) {
				t.Errorf("sandbox %d has the service %v", i, sb.Spec.Service)
			}
		}
	})
	t.Run("under way", func(t *testing.T) {
		b := newServiceBed(t, nil)
		b.box.EnsureStarted()
		b.exec.EndBackground()
		close(b.recorded)
		<-b.box.current.ready
		if err := b.box.current.err; !errors.Is(err, errSessionEnd) || len(b.warnings) > 0 {
			t.Errorf("error %v, warnings %q", err, b.warnings)
		}
	})
}

// TestServiceInAWeakSandbox: if lost protections are refused, the service does not run before that.
func TestServiceInAWeakSandbox(t *testing.T) {
	b := newServiceBed(t, func(o *Options) { o.RefuseLost = true })
	b.backend.Lost = []string{"seccomp"}
	close(b.recorded)
	_, err := b.exec.Run(t.Context(), shell.Command{Script: "ls", Command: sandbox.Command{Stdout: io.Discard, Stderr: io.Discard}})
	if !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	select {
	case <-b.running:
		t.Error("the service ran")
	default:
	}
}
