package diskwatch

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
)

// fakeDisk is a file system whose room a test sets.
type fakeDisk struct{ bytes, files, allFiles, killed atomic.Int64 }

func (d *fakeDisk) room() Room {
	return Room{Bytes: d.bytes.Load(), Files: d.files.Load(), AllFiles: d.allFiles.Load()}
}

func (d *fakeDisk) kill() { d.killed.Add(1) }

// TestDiskWatch fills a disk with bytes and with files.
func TestDiskWatch(t *testing.T) {
	for name, c := range map[string]struct {
		count   func(*fakeDisk) *atomic.Int64
		reserve int64
		slack   int64
	}{
		"bytes": {func(d *fakeDisk) *atomic.Int64 { return &d.bytes }, Reserve, byteSlack},
		"files": {func(d *fakeDisk) *atomic.Int64 { return &d.files }, 50_000, fileSlack},
		"bytes, files not counted": {func(d *fakeDisk) *atomic.Int64 {
			d.files.Store(-1)
			d.allFiles.Store(-1)
			return &d.bytes
		}, Reserve, byteSlack},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var disk fakeDisk
				disk.bytes.Store(10 << 30)
				disk.files.Store(900_000)
				disk.allFiles.Store(1_000_000)
				free := c.count(&disk)
				w := New(Reserve, disk.room, disk.kill)
				ctx, stop := w.WatchContext(t.Context())
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Fatalf("ended with room left: %v", context.Cause(ctx))
				}
				free.Store(c.reserve - 1)
				<-ctx.Done()
				var e *limits.ExceededError
				if !errors.As(context.Cause(ctx), &e) || e.Kind != limits.KindDisk || e.Limit != c.reserve || e.Used != c.reserve-1 || e.Files != (name == "files") {
					t.Errorf("ended with %v", context.Cause(ctx))
				}
				stop()

				// The next one can remove things, but not write much. With room again, one can go on.
				ctx, stop = w.WatchContext(t.Context())
				time.Sleep(time.Minute)
				free.Add(-c.slack)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Error("nothing can be removed from a full disk")
				}
				free.Add(-1)
				<-ctx.Done()
				stop()
				// Many commands that each stay within their slack can't fill the disk.
				before := free.Load()
				for slack := c.slack / 2; slack > 4; slack /= 2 {
					ctx, stop = w.WatchContext(t.Context())
					free.Add(-slack)
					time.Sleep(time.Minute)
					if ctx.Err() != nil {
						t.Errorf("ended within a slack of %d", slack)
					}
					stop()
				}
				ctx, stop = w.WatchContext(t.Context())
				free.Add(-c.slack / 2)
				<-ctx.Done()
				stop()
				if used := before - free.Load(); used > 2*c.slack {
					t.Errorf("commands used %d in all, with a slack of %d", used, c.slack)
				}
				free.Store(2 * c.reserve)
				ctx, stop = w.WatchContext(t.Context())
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Error("with room again a command is ended")
				}
				stop()
				if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
					t.Errorf("the end of a command is %v", cause)
				}
				if disk.killed.Load() != 0 {
					t.Error("a sandbox was killed though its commands could be ended")
				}
			})
		})
	}
}

// TestDiskWatchOfACancelledCommand: a cancelled command can't fill the disk in its grace period either.
func TestDiskWatchOfACancelledCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk fakeDisk
		disk.bytes.Store(10 << 30)
		disk.files.Store(-1)
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := New(Reserve, disk.room, disk.kill).WatchContext(ctx)
		cancel()
		time.Sleep(time.Second)
		if disk.killed.Load() != 0 {
			t.Error("the sandbox was killed with room left")
		}
		disk.bytes.Store(1)
		time.Sleep(time.Second)
		if disk.killed.Load() != 1 {
			t.Error("the sandbox was not killed")
		}
		stop()
	})
}

// TestDiskReserve: small disks, and ones of unknown size, can be used.
func TestDiskReserve(t *testing.T) {
	for _, c := range []struct{ room, want Room }{
		{Room{Bytes: 100, Files: 100, AllFiles: 1 << 40}, Room{Bytes: 50, Files: 50}},
		{Room{Bytes: 1 << 40, Files: 30_208, AllFiles: 30_208}, Room{Bytes: Reserve, Files: leastFiles}},
		{Room{Bytes: 1 << 40, Files: 900_000, AllFiles: 1_000_000}, Room{Bytes: Reserve, Files: 50_000}},
		{Room{Bytes: 1 << 40, Files: 2000, AllFiles: 30_208}, Room{Bytes: Reserve, Files: 1000}},
		{UnknownRoom, Room{}},
	} {
		if w := New(Reserve, func() Room { return c.room }, nil); w.reserve != c.want {
			t.Errorf("of %+v, %+v is reserved", c.room, w.reserve)
		}
	}
	// A file system without a size, or without a bound on files, has room.
	for _, c := range []struct {
		fs   unix.Statfs_t
		err  error
		want Room
	}{
		{unix.Statfs_t{Blocks: 1, Bavail: 3, Bsize: 10, Files: 1, Ffree: 2}, nil, Room{Bytes: 30, Files: 2, AllFiles: 1}},
		{unix.Statfs_t{Bavail: 3, Bsize: 10, Ffree: 2}, nil, UnknownRoom},
		{unix.Statfs_t{Blocks: 1, Bavail: 3, Bsize: 10, Files: 1, Ffree: 2}, unix.EIO, UnknownRoom},
	} {
		if got := roomOf(&c.fs, c.err); got != c.want {
			t.Errorf("%+v, %v: %+v", c.fs, c.err, got)
		}
	}
	for _, c := range []struct {
		room Room
		full bool
	}{{Room{Bytes: 100, Files: 100}, false}, {Room{Bytes: 99, Files: 100}, true}, {Room{Bytes: 100, Files: 99}, true}, {Room{Files: 100}, true}, {Room{Bytes: 100}, true}, {UnknownRoom, false}} {
		w := &Watch{room: func() Room { return c.room }}
		if err := w.checkFloor(Room{Bytes: 100, Files: 100}); (err != nil) != c.full {
			t.Errorf("%+v: %v", c.room, err)
		}
	}
	if full := (&Watch{room: func() Room { return Room{Files: 5, Bytes: 5} }, reserve: Room{Files: 7}}).checkFloor(Room{Files: 6}); full == nil {
		t.Error("no files are left, and it is not said")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := New(Reserve, func() Room { return UnknownRoom }, nil).WatchContext(t.Context())
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
	if room := RoomOn(dir)(); room.Bytes <= 0 || room.Files == 0 || room.AllFiles != RoomAt(dir.Name())().AllFiles {
		t.Errorf("%+v is free", room)
	}
}
