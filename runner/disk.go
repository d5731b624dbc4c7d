package runner

import (
	"context"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// Bounds of the host's own disk.
const (
	// diskReserve is the room that commands must leave on the file system that
	// they write to: enough for the host to go on, and more than the fastest
	// disks write between two looks.
	diskReserve = 1 << 30
	// diskSlack is what a command may still write that starts when less than the
	// reserve is left: it must be possible to remove things.
	diskSlack = 16 << 20
	// diskLook is how often it is looked at while a command runs: a statfs
	// takes 2 µs.
	diskLook = 200 * time.Millisecond
)

// diskWatch ends commands before they fill the file system that the workspace,
// or an overlay's upper layer, is on: neither has a size of its own, and a full
// disk is the host's trouble. It is safe for concurrent use.
type diskWatch struct {
	// free gives the room that is left, in bytes; ok is false where that can't
	// be told.
	free func() (n int64, ok bool)
	// reserve is what must be left.
	reserve int64
}

// newDiskWatch keeps diskReserve free, or half of what is free now where that
// is less, so that a small disk can be worked on.
func newDiskWatch(free func() (int64, bool)) *diskWatch {
	w := &diskWatch{free: free, reserve: diskReserve}
	if n, ok := free(); ok {
		w.reserve = min(w.reserve, n/2)
	}
	return w
}

// watch returns a context that is cancelled, with a *limits.ExceededError of
// kind disk as its cause, when less than the reserve is left; where it was less
// before, when diskSlack more is gone. Call stop when the command has ended. A
// file system that does not answer ends nothing.
func (w *diskWatch) watch(ctx context.Context) (watched context.Context, stop func()) {
	if w == nil {
		return ctx, func() {}
	}
	floor := w.reserve
	if n, ok := w.free(); ok {
		floor = min(floor, n-diskSlack)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		look := time.NewTicker(diskLook)
		defer look.Stop()
		for {
			if n, ok := w.free(); ok && n < floor {
				cancel(&limits.ExceededError{Kind: limits.KindDisk, Limit: w.reserve, Used: n})
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// diskWatch watches what commands write to: the workspace, or in overlay mode
// the layers in the session's folder.
func (s *Session) diskWatch() *diskWatch {
	if s.overlaid() {
		return newDiskWatch(freeAt(s.dir))
	}
	return newDiskWatch(freeOn(s.opts.Workspace.Dir))
}
