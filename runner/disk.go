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
	// disks write between two checks.
	diskReserve = 1 << 30
	// diskSlack and fileSlack are the bytes and files that a command may still
	// write that starts when less than the reserve is left: it must be possible
	// to remove things.
	diskSlack = 16 << 20
	fileSlack = 1000
	// fileReserve is the part of all the files (inodes) of a file system that
	// commands must leave, in percent, and leastFiles the least of it: more than
	// the fastest command creates between two checks and until it is dead.
	fileReserve = 5
	leastFiles  = 10_000
	// diskLook is the interval of checks while a command runs: a statfs
	// takes 2 µs, and one processor creates 5,000 files in the meantime.
	diskLook = 25 * time.Millisecond
)

// diskRoom is the free space of a file system for ordinary users. A field is -1
// if it is unknown.
type diskRoom struct {
	bytes, files int64
	// allFiles is how many files the file system can hold.
	allFiles int64
}

// noRoom is the room of a file system whose room is unknown.
var noRoom = diskRoom{bytes: -1, files: -1}

// diskWatch ends commands before they fill the file system that the workspace,
// or an overlay's upper layer, is on: neither has a size of its own, and a full
// disk is the host's trouble. It is safe for concurrent use.
type diskWatch struct {
	// room returns what is left.
	room func() diskRoom
	// reserve is the room that must be left.
	reserve diskRoom
	// kill ends what does not end when its context is cancelled.
	kill func()
}

// newDiskWatch keeps diskReserve bytes and fileReserve percent of the files
// free, leastFiles at least, or half of what is free now if that is less, so
// that a small disk can be worked on.
func newDiskWatch(room func() diskRoom, kill func()) *diskWatch {
	now := room()
	return &diskWatch{room: room, kill: kill, reserve: diskRoom{
		bytes: min(diskReserve, now.bytes/2),
		files: min(max(now.allFiles/100*fileReserve, leastFiles), now.files/2),
	}}
}

// watchContext returns a context that is cancelled, with a *limits.ExceededError of
// kind disk as its cause, when less than the reserve is left; if less was left
// before, when the slack is gone too. A command that is cancelled already is
// killed then. Call stop when the command has ended. A file system that does
// not answer ends nothing.
func (w *diskWatch) watchContext(ctx context.Context) (watched context.Context, stop func()) {
	if w == nil {
		return ctx, func() {}
	}
	now := w.room()
	floor := diskRoom{bytes: min(w.reserve.bytes, now.bytes-diskSlack), files: min(w.reserve.files, now.files-fileSlack)}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		look := time.NewTicker(diskLook)
		for {
			if full := w.checkFloor(floor); full != nil {
				if ctx.Err() != nil && w.kill != nil {
					w.kill()
				}
				cancel(full)
				return
			}
			select {
			case <-ended:
				return
			case <-look.C:
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		close(ended)
	}
}

// checkFloor returns an error where less than floor is left, and nil otherwise.
func (w *diskWatch) checkFloor(floor diskRoom) error {
	now := w.room()
	switch {
	case now.bytes >= 0 && now.bytes < floor.bytes:
		return &limits.ExceededError{Kind: limits.KindDisk, Limit: w.reserve.bytes, Used: now.bytes}
	case now.files >= 0 && now.files < floor.files:
		return &limits.ExceededError{Kind: limits.KindDisk, Limit: w.reserve.files, Used: now.files, Files: true}
	}
	return nil
}
