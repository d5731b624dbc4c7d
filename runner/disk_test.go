package runner

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/limits"
)

func TestDiskWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		free.Store(10 << 30)
		w := newDiskWatch(func() (int64, bool) { return free.Load(), true })
		ctx, stop := w.watch(t.Context())
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Fatalf("ended with 10 GiB free: %v", context.Cause(ctx))
		}
		free.Store(diskReserve - 1)
		<-ctx.Done()
		var e *limits.ExceededError
		if !errors.As(context.Cause(ctx), &e) || e.Kind != limits.KindDisk || e.Limit != diskReserve || e.Used != diskReserve-1 {
			t.Errorf("ended with %v", context.Cause(ctx))
		}
		stop()

		// The next one can remove things, but not write much more; one with room
		// again goes on.
		ctx, stop = w.watch(t.Context())
		time.Sleep(time.Minute)
		free.Add(-diskSlack)
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Error("nothing can be removed from a full disk")
		}
		free.Add(-1)
		<-ctx.Done()
		stop()
		free.Store(2 * diskReserve)
		ctx, stop = w.watch(t.Context())
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Error("with room again a command is ended")
		}
		stop()
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
			t.Errorf("the end of a command is %v", cause)
		}
	})
}

// TestDiskReserve: a small disk can be worked on, one that can't be asked too.
func TestDiskReserve(t *testing.T) {
	if w := newDiskWatch(func() (int64, bool) { return 100, true }); w.reserve != 50 {
		t.Errorf("of 100 bytes %d are reserved", w.reserve)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := newDiskWatch(func() (int64, bool) { return 0, false }).watch(t.Context())
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Error("a disk that can't be asked ends commands")
		}
		stop()
	})
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if n, ok := freeOn(dir)(); !ok || n <= 0 {
		t.Errorf("%d bytes are free, known %t", n, ok)
	}
}
