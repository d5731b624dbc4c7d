package livesandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestBackgroundThatDoesNotStart takes no place, and leaves no file open and nothing running.
func TestBackgroundThatDoesNotStart(t *testing.T) {
	for name, fills := range map[string]bool{"a refused one": false, "one on a full disk": true} {
		t.Run(name, func(t *testing.T) {
			b, ended := startedBackgrounds(t, nil)
			var looks, free atomic.Int64
			free.Store(2 * diskwatch.Reserve)
			watch := diskwatch.New(diskwatch.Reserve, func() diskwatch.Room {
				looks.Add(1)
				return diskwatch.Room{Bytes: free.Load(), Files: -1}
			}, nil)
			var command context.Context
			b.x.sandbox.opts.Backend.(*fakesandbox.Backend).OnStart = func(ctx context.Context, cmd sandbox.Command) error {
				if cmd.Argv[0] == "bash" && len(cmd.Argv) == 3 {
					return nil // there is a bash
				}
				command = ctx
				if fills {
					free.Store(0)
					<-ctx.Done()
				}
				return sandbox.ErrInvalid
			}
			for i := range maxBackground + 2 { // each would take one of the places
				if b.x.disk = watch; i == 0 && !fills {
					b.x.disk = nil
				}
				free.Store(2 * diskwatch.Reserve)
				handle, err := b.Begin(t.Context(), shell.Command{Script: "serve", Command: sandbox.Command{Dir: "none"}})
				full, isFull := errors.AsType[*limits.ExceededError](err)
				if isFull != fills || isFull && full.Kind != limits.KindDisk || !fills && !errors.Is(err, sandbox.ErrInvalid) {
					t.Fatalf("start %d: %v", i, err)
				}
				if handle != "" || command.Err() == nil {
					t.Errorf("start %d: handle %q, its context: %v", i, handle, command.Err())
				}
				if _, ok, _ := b.openOutput("background-1"); ok {
					t.Error("a command that did not start has output")
				}
			}
			time.Sleep(diskwatch.Interval) // for running checks
			now := looks.Load()
			time.Sleep(3 * diskwatch.Interval)
			if looks.Load() != now {
				t.Error("the disk is still watched")
			}
			if open := openFiles(t, b.x.spill.dir); len(open) != 0 {
				t.Errorf("still open: %q", open)
			}
			b.endAll() // waits for what is counted as running
			if len(ended()) != 0 {
				t.Errorf("recorded: %+v", ended())
			}
		})
	}
}

// openFiles returns the files below a directory that this process has open.
func openFiles(t *testing.T, dir string) (open []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			open = append(open, to)
		}
	}
	return open
}

func TestBackgroundWithoutRoomForItsOutput(t *testing.T) {
	b, _ := startedBackgrounds(t, nil)
	b.x.spill = newSpiller(filepath.Join(t.TempDir(), "none"), nil)
	if handle, err := b.Begin(t.Context(), shell.Command{Script: "serve"}); err == nil || handle != "" || b.live != 0 {
		t.Errorf("%q, %v, %d run", handle, err, b.live)
	}
}

func TestBackgroundWithoutAShell(t *testing.T) {
	b, _ := startedBackgrounds(t, nil)
	b.x.sandbox.opts.Backend.(*fakesandbox.Backend).OnStart = func(context.Context, sandbox.Command) error { return sandbox.ErrInvalid }
	if handle, err := b.Begin(t.Context(), shell.Command{Script: "serve"}); !errors.Is(err, sandbox.ErrInvalid) || handle != "" {
		t.Errorf("%q, %v", handle, err)
	}
}

// TestBackgroundWhoseCallIsCancelledAsItStarts is ended at once, and its end is waited for and recorded.
func TestBackgroundWhoseCallIsCancelledAsItStarts(t *testing.T) {
	user := errors.New("user")
	ctx, cancel := context.WithCancelCause(t.Context())
	b, ended := startedBackgrounds(t, map[string]fakesandbox.Script{"serve": func(ctx context.Context, _ *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		<-ctx.Done()
		return sandbox.ExitStatus{Code: -1, Signal: 15}
	}})
	b.x.sandbox.opts.Backend.(*fakesandbox.Backend).OnStart = func(_ context.Context, cmd sandbox.Command) error {
		if len(cmd.Argv) > 3 {
			cancel(user)
		}
		return nil
	}
	if _, err := b.Begin(ctx, shell.Command{Script: "serve"}); !errors.Is(err, user) {
		t.Errorf("Begin: %v", err)
	}
	if e := ended(); len(e) != 1 || e[0].EndedBy != "cancelled" {
		t.Errorf("ended: %+v", e)
	}
}

// TestBackgroundCommand: the right command runs, both streams are kept, and its context ends with it.
func TestBackgroundCommand(t *testing.T) {
	var got sandbox.Command
	var command context.Context
	b, _ := startedBackgrounds(t, map[string]fakesandbox.Script{"serve": func(ctx context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		got, command = cmd, ctx
		_, _ = cmd.Stdout.Write([]byte("out\n"))
		_, _ = cmd.Stderr.Write([]byte("err\n"))
		return sandbox.ExitStatus{}
	}})
	for timeout, want := range map[time.Duration]time.Duration{0: backgroundTime, time.Minute: time.Minute} {
		handle, err := b.Begin(t.Context(), shell.Command{Script: "serve", Command: sandbox.Command{Dir: "sub", Timeout: timeout, NoLinks: true}})
		if err != nil {
			t.Fatal(err)
		}
		b.wait.Wait()
		if got.Timeout != want || got.Dir != "sub" || !got.NoLinks || command.Err() == nil {
			t.Errorf("%+v; its context: %v", got, command.Err())
		}
		if text, _ := b.all[handle].log.text(t); text != "out\nerr\n" {
			t.Errorf("output %q", text)
		}
	}
}

func TestBackgroundThatDoesNotEnd(t *testing.T) {
	release := make(chan struct{})
	b, _ := startedBackgrounds(t, map[string]fakesandbox.Script{"deaf": func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		<-release
		return sandbox.ExitStatus{}
	}})
	handle, err := b.Begin(t.Context(), shell.Command{Script: "deaf"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	user := errors.New("user")
	cancel(user)
	if _, was, err := b.End(ctx, handle); was || !errors.Is(err, user) {
		t.Errorf("End: %t, %v", was, err)
	}
	close(release)
	if _, was, err := b.End(t.Context(), "background-9"); was || !errors.Is(err, shell.ErrNoOutput) {
		t.Errorf("End of an unknown one: %t, %v", was, err)
	}
}

// endedProcess is a process that has ended.
type endedProcess struct {
	sandbox.Process
	exit sandbox.Exit
	err  error
}

func (p endedProcess) Wait() (sandbox.Exit, error) { return p.exit, p.err }

// TestEndsOfBackgroundCommands: what a command's end means for its result, its record, the sandbox and
// the workspace.
func TestEndsOfBackgroundCommands(t *testing.T) {
	full := &limits.ExceededError{Kind: limits.KindDisk, Limit: diskwatch.Reserve, Files: true}
	cancelled := sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
	for name, c := range map[string]struct {
		exit    sandbox.Exit
		err     error
		cause   error
		failing error // of the record
		by      string
		reserve int64
		after   bool // the workspace is looked at
		retired bool // the sandbox is replaced
	}{
		"by itself":        {exit: sandbox.Exit{Stdout: sandbox.Stream{Total: 100}, Wall: 5 * time.Second, Kill: sandbox.KillReport{Killed: 3}}, by: "itself", after: true},
		"of a full disk":   {exit: sandbox.Exit{Status: cancelled}, cause: full, by: "disk_full", reserve: diskwatch.Reserve, after: true},
		"as a disk filled": {cause: full, by: "itself", after: true},
		"with its sandbox": {err: sandbox.ErrLost, by: "sandbox_lost"},
		"with the session": {exit: sandbox.Exit{Status: cancelled}, cause: errSessionEnd, by: "session_end"},
		"by a kill":        {exit: sandbox.Exit{Status: cancelled}, cause: errKilled, by: "shell_kill", after: true},
		"with one process left": {
			exit: sandbox.Exit{Status: cancelled, Kill: sandbox.KillReport{Left: 1}}, cause: errKilled, by: "shell_kill",
			after: true, retired: true,
		},
		"unrecorded": {failing: errors.New("no space"), by: "itself", after: true},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := startedBackgrounds(t, nil)
			core, logged := observer.New(zap.ErrorLevel)
			b.log = zap.New(core)
			var ended record.BackgroundEnded
			b.ended = func(e record.BackgroundEnded) error {
				ended = e
				return c.failing
			}
			after, lost := 0, 0
			b.x.opts.AfterCommand = func(ctx context.Context) {
				if ctx.Err() != nil {
					t.Error("the look at the workspace ends with the command")
				}
				after++
			}
			g, err := b.x.waitReady(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.x.sandbox.opts.Record = func(p record.Payload) error {
				if _, ok := p.(record.SandboxLost); ok {
					lost++
				}
				return nil
			}
			j, err := b.addCommand("tu_1", func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(c.cause)
			b.finishCommand(ctx, g, j, endedProcess{exit: c.exit, err: c.err})
			b.wait.Done()
			end, was, err := b.End(t.Context(), j.handle)
			if err != nil || !was || end.Lost != (c.err != nil) || (end.Exceeded == full) != (c.reserve > 0) || end.Bytes != c.exit.Stdout.Total {
				t.Errorf("%+v, %t, %v", end, was, err)
			}
			if end.Status.Cancelled != (c.exit.Status.Cancelled && c.reserve == 0) {
				t.Errorf("cancelled: %t", end.Status.Cancelled)
			}
			if end.Wall <= 0 || c.exit.Wall > 0 && end.Wall != c.exit.Wall {
				t.Errorf("it ran for %v", end.Wall)
			}
			if ended.EndedBy != c.by || (ended.Error != "") != (c.err != nil) {
				t.Errorf("recorded: %+v", ended)
			}
			if (after == 1) != c.after || (lost == 1) != c.retired || b.x.ProcessesKilled() != c.exit.Kill.Killed {
				t.Errorf("looked %d times, lost %d sandboxes, %d processes killed", after, lost, b.x.ProcessesKilled())
			}
			if n := logged.Len(); (n == 1) != (c.failing != nil) {
				t.Errorf("%d errors logged", n)
			}
		})
	}
}

// TestStateOfAFlood: a reader of a flood is told what is missing, and if the file is gone, gets an
// error.
func TestStateOfAFlood(t *testing.T) {
	b, _ := startedBackgrounds(t, nil)
	j, err := b.addCommand("tu_1", func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer b.wait.Done()
	for _, flood := range []bool{false, true} {
		if flood {
			j.log.live[1] = backgroundLive
		}
		k, ok, err := b.openOutput(j.handle)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		k.Close()
		if want := "running for 0s"; (k.State == want) == flood || !strings.HasPrefix(k.State, want) || strings.Contains(k.State, "; it has written more") != flood {
			t.Errorf("flood %t: %q", flood, k.State)
		}
	}
	if err := os.Remove(j.log.path); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := b.openOutput(j.handle); !ok || err == nil {
		t.Errorf("%t, %v", ok, err)
	}
}
