//go:build linux

package runner

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestDiskFull: a command that fills the disk is ended, and its result says why
// and that nobody cancelled it.
func TestDiskFull(t *testing.T) {
	var free atomic.Int64
	free.Store(diskReserve * 4)
	started := make(chan struct{})
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	box := newContainer(t.Context(), &fakeBackend{scripts: map[string]script{"fill": hangs(started)}}, sandbox.Spec{Workspace: sandbox.Workspace{Path: dir.Name(), Dir: dir}})
	box.record = func(Payload) error { return nil }
	box.start()
	defer box.close()
	ready := make(chan struct{})
	close(ready)
	x := &executor{
		box: box, spill: newSpiller(t.TempDir(), nil), ready: ready, after: func(context.Context) {},
		disk: newDiskWatch(func() (int64, bool) { return free.Load(), true }),
	}
	go func() {
		<-started
		free.Store(1000)
	}()
	r, err := x.Run(t.Context(), shell.Command{Script: "fill", Stdout: discard{}, Stderr: discard{}})
	if err != nil || r.DiskReserve != diskReserve || r.Cancelled || r.Signal != 15 {
		t.Errorf("%+v, %v", r, err)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
