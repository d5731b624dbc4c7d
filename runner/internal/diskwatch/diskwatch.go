// Package diskwatch ends commands before they fill a file system of the host.
package diskwatch

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
)

// Bounds of the host's disk.
const (
	// Reserve is the room in bytes that commands must leave on the file system that they
	// write to: enough for the host, and more than the fastest disks write between two
	// checks.
	Reserve = 1 << 30
	// byteSlack and fileSlack are what a command may still write if less than the reserve
	// is left when it starts: it must be possible to remove things.
	byteSlack = 16 << 20
	fileSlack = 1000
	// fileReserve is the percentage of a file system's files (inodes) that commands must
	// leave, and leastFiles the minimum: more than the fastest command creates before the next
	// check ends it.
	fileReserve = 5
	leastFiles  = 10_000
	// Interval is the time between checks while a command runs. A statfs takes 2 µs, and one
	// processor creates 5,000 files in an interval.
	Interval = 25 * time.Millisecond
)

// Room is the free space of a file system for ordinary users. Unknown fields are -1.
type Room struct {
	Bytes, Files int64
	// AllFiles is how many files the file system can hold.
	AllFiles int64
}

// UnknownRoom has only unknown fields.
var UnknownRoom = Room{Bytes: -1, Files: -1}

// Least returns the least of several rooms, field by field.
func Least(rooms []func() Room) Room {
	least := UnknownRoom
	for _, room := range rooms {
		r := room()
		if r.Bytes >= 0 && (least.Bytes < 0 || r.Bytes < least.Bytes) {
			least.Bytes = r.Bytes
		}
		if r.Files >= 0 && (least.Files < 0 || r.Files < least.Files) {
			least.Files, least.AllFiles = r.Files, r.AllFiles
		}
	}
	return least
}

// Watch ends commands before they fill the file system of the workspace, or of an overlay's
// upper layer: these have no size limit, and a full disk harms the host. It is safe for
// concurrent use.
type Watch struct {
	room func() Room
	// reserve is the room that must be left.
	reserve Room
	// kill ends commands that don't end when their contexts are cancelled.
	kill  func()
	slack slack
}

// slack is what commands may still write to what is full. Each one gets half of what the one
// before got: none is ended because it removes something, and many together can't fill a disk.
type slack struct {
	mu   sync.Mutex
	left use
}

// take returns the next command's slack. With room, the slack is whole again.
func (s *slack) take(isFull bool) use {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isFull || s.left == (use{}) {
		s.left = use{byteSlack, fileSlack}
	}
	out := s.left
	if isFull {
		s.left = use{max(out.bytes/2, byteSlack/256), max(out.files/2, fileSlack/256)}
	}
	return out
}

// New returns a watch that keeps reserve bytes free, and fileReserve percent of the files or
// leastFiles. If less than twice that is free, it keeps half of it, so that small disks can
// be used.
func New(reserve int64, room func() Room, kill func()) *Watch {
	now := room()
	return &Watch{room: room, kill: kill, reserve: Room{
		Bytes: min(reserve, now.Bytes/2),
		Files: min(max(now.AllFiles/100*fileReserve, leastFiles), now.Files/2),
	}}
}

// WatchContext returns a context that is cancelled with a *limits.ExceededError of kind disk
// when less than the reserve is left, or, if that was so before, when the slack is used too, or
// when one of the bounds is exceeded. If the command is already cancelled then, it is killed.
// Call stop when the command has ended. If the room is unknown, nothing is ended. A nil Watch
// returns ctx.
func (w *Watch) WatchContext(ctx context.Context, bounds ...*Bound) (watched context.Context, stop func()) {
	if w == nil {
		return ctx, func() {}
	}
	now := w.room()
	slack := w.slack.take(now.Bytes >= 0 && now.Bytes < w.reserve.Bytes || now.Files >= 0 && now.Files < w.reserve.Files)
	floor := Room{Bytes: min(w.reserve.Bytes, now.Bytes-slack.bytes), Files: min(w.reserve.Files, now.Files-slack.files)}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	endCommand := func(full error) {
		cancelled := ctx.Err() != nil
		select {
		case <-ended: // meanwhile
			return
		default:
		}
		if cancelled && w.kill != nil {
			w.kill()
		}
		cancel(full)
	}
	for _, b := range bounds {
		go b.watch(ended, endCommand)
	}
	go func() {
		ticker := time.NewTicker(Interval)
		defer ticker.Stop()
		for {
			if full := w.checkFloor(floor); full != nil {
				endCommand(full)
				return
			}
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
		}
	}()
	return ctx, func() {
		close(ended) // first, so that this cancellation kills nothing
		cancel(nil)
	}
}

func (w *Watch) checkFloor(floor Room) error {
	now := w.room()
	switch {
	case now.Bytes >= 0 && now.Bytes < floor.Bytes:
		return &limits.ExceededError{Kind: limits.KindDisk, Limit: w.reserve.Bytes, Used: now.Bytes}
	case now.Files >= 0 && now.Files < floor.Files:
		return &limits.ExceededError{Kind: limits.KindDisk, Limit: w.reserve.Files, Used: now.Files, Files: true}
	}
	return nil
}

// RoomOn returns a function that measures the room on dir's file system.
func RoomOn(dir *os.File) func() Room {
	return func() Room {
		raw, err := dir.SyscallConn()
		if err != nil {
			return UnknownRoom
		}
		room := UnknownRoom
		err = raw.Control(func(fd uintptr) {
			var fs unix.Statfs_t
			err := unix.Fstatfs(int(fd), &fs)
			room = roomOf(&fs, err)
		})
		if err != nil {
			return UnknownRoom
		}
		return room
	}
}

// RoomAt is [RoomOn] for a path.
func RoomAt(dir string) func() Room {
	return func() Room {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		return roomOf(&fs, err)
	}
}

// roomOf reads the result of statfs(2). A count of 0 means that a file system has no size or,
// like btrfs, no bound on files.
func roomOf(fs *unix.Statfs_t, err error) Room {
	room := UnknownRoom
	if err != nil {
		return room
	}
	if fs.Blocks > 0 {
		room.Bytes = int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // 32 bits on some systems
	}
	if fs.Files > 0 {
		room.Files, room.AllFiles = int64(fs.Ffree), int64(fs.Files)
	}
	return room
}
