package livesandbox

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// filling returns an executor whose command "fill" fills the disk.
func filling(t *testing.T) *Executor {
	t.Helper()
	var free atomic.Int64
	free.Store(diskwatch.Reserve * 4)
	started := make(chan struct{})
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	box := New(t.Context(), Options{
		Backend: &fakesandbox.Backend{Scripts: map[string]fakesandbox.Script{"fill": fakesandbox.WaitForEnd(started)}},
		Spec:    sandbox.Spec{Workspace: sandbox.Workspace{Path: dir.Name(), Dir: dir}},
		Record:  func(record.Payload) error { return nil },
	})
	box.EnsureStarted()
	t.Cleanup(box.StopAndDestroy)
	go func() {
		<-started
		free.Store(1000)
	}()
	return NewExecutor(box, ExecutorOptions{
		Dir: t.TempDir(), WaitRecorded: noWait, AfterCommand: func(context.Context) {},
		Room: func() diskwatch.Room { return diskwatch.Room{Bytes: free.Load(), Files: -1} },
	})
}

// TestDiskFull: a command that fills the disk is ended, and its result says why and that nobody
// cancelled it.
func TestDiskFull(t *testing.T) {
	r, err := filling(t).Run(t.Context(), shell.Command{Script: "fill", Command: sandbox.Command{Stdout: discard{}, Stderr: discard{}}})
	if err != nil || r.Exceeded == nil || r.Exceeded.Limit != diskwatch.Reserve || r.Status.Cancelled || r.Status.Signal != 15 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestUserCommandDiskFull: so is a user's.
func TestUserCommandDiskFull(t *testing.T) {
	x := filling(t)
	exit, err := x.RunProgram(t.Context(), sandbox.Command{Argv: []string{"fill"}, Stdout: discard{}, Stderr: discard{}})
	full, ok := errors.AsType[*limits.ExceededError](err)
	if !ok || full.Kind != limits.KindDisk || exit.Status.Signal != 15 {
		t.Errorf("%+v, %v", exit, err)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
