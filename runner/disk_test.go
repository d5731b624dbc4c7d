//go:build linux

package runner

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
	"github.com/caisson-run/caisson/sandbox"
)

// fakeDisk is a file system whose room a test sets.
type fakeDisk struct{ bytes, files, allFiles, killed atomic.Int64 }

func (d *fakeDisk) room() diskRoom {
	return diskRoom{bytes: d.bytes.Load(), files: d.files.Load(), allFiles: d.allFiles.Load()}
}

func (d *fakeDisk) kill() { d.killed.Add(1) }

// TestDiskWatch fills a disk with bytes and with files.
func TestDiskWatch(t *testing.T) {
	for name, c := range map[string]struct {
		count   func(*fakeDisk) *atomic.Int64
		reserve int64
		slack   int64
	}{
		"bytes": {func(d *fakeDisk) *atomic.Int64 { return &d.bytes }, diskReserve, diskSlack},
		"files": {func(d *fakeDisk) *atomic.Int64 { return &d.files }, 50_000, fileSlack},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var disk fakeDisk
				disk.bytes.Store(10 << 30)
				disk.files.Store(900_000)
				disk.allFiles.Store(1_000_000)
				free := c.count(&disk)
				w := newDiskWatch(disk.room, disk.kill)
				ctx, stop := w.watchContext(t.Context())
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

				// The next one can remove things, but not write much more; one with
				// room again goes on.
				ctx, stop = w.watchContext(t.Context())
				time.Sleep(time.Minute)
				free.Add(-c.slack)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Error("nothing can be removed from a full disk")
				}
				free.Add(-1)
				<-ctx.Done()
				stop()
				free.Store(2 * c.reserve)
				ctx, stop = w.watchContext(t.Context())
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

// TestDiskWatchOfACancelledCommand: a command that was cancelled and goes on
// fills no disk in its grace period either.
func TestDiskWatchOfACancelledCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk fakeDisk
		disk.bytes.Store(10 << 30)
		disk.files.Store(-1)
		ctx, cancel := context.WithCancel(t.Context())
		_, stop := newDiskWatch(disk.room, disk.kill).watchContext(ctx)
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

// TestDiskReserve: a small disk can be worked on, one that can't be asked too.
func TestDiskReserve(t *testing.T) {
	for _, c := range []struct{ room, want diskRoom }{
		{diskRoom{bytes: 100, files: 100, allFiles: 1 << 40}, diskRoom{bytes: 50, files: 50}},
		{diskRoom{bytes: 1 << 40, files: 30_208, allFiles: 30_208}, diskRoom{bytes: diskReserve, files: leastFiles}},
		{diskRoom{bytes: 1 << 40, files: 900_000, allFiles: 1_000_000}, diskRoom{bytes: diskReserve, files: 50_000}},
		{diskRoom{bytes: 1 << 40, files: 2000, allFiles: 30_208}, diskRoom{bytes: diskReserve, files: 1000}},
		{noRoom, diskRoom{}},
	} {
		if w := newDiskWatch(func() diskRoom { return c.room }, nil); w.reserve != c.want {
			t.Errorf("of %+v, %+v is reserved", c.room, w.reserve)
		}
	}
	// A file system without a size, or without a bound on files, has room.
	for _, c := range []struct {
		fs   unix.Statfs_t
		err  error
		want diskRoom
	}{
		{unix.Statfs_t{Blocks: 1, Bavail: 3, Bsize: 10, Files: 1, Ffree: 2}, nil, diskRoom{bytes: 30, files: 2, allFiles: 1}},
		{unix.Statfs_t{Bavail: 3, Bsize: 10, Ffree: 2}, nil, noRoom},
		{unix.Statfs_t{Blocks: 1, Bavail: 3, Bsize: 10, Files: 1, Ffree: 2}, unix.EIO, noRoom},
	} {
		if got := roomOf(&c.fs, c.err); got != c.want {
			t.Errorf("%+v, %v: %+v", c.fs, c.err, got)
		}
	}
	for _, c := range []struct {
		room diskRoom
		full bool
	}{{diskRoom{bytes: 100, files: 100}, false}, {diskRoom{bytes: 99, files: 100}, true}, {diskRoom{bytes: 100, files: 99}, true}, {diskRoom{files: 100}, true}, {diskRoom{bytes: 100}, true}, {noRoom, false}} {
		w := &diskWatch{room: func() diskRoom { return c.room }}
		if err := w.checkFloor(diskRoom{bytes: 100, files: 100}); (err != nil) != c.full {
			t.Errorf("%+v: %v", c.room, err)
		}
	}
	if full := (&diskWatch{room: func() diskRoom { return diskRoom{files: 5, bytes: 5} }, reserve: diskRoom{files: 7}}).checkFloor(diskRoom{files: 6}); full == nil {
		t.Error("no files are left, and it is not said")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := newDiskWatch(func() diskRoom { return noRoom }, nil).watchContext(t.Context())
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
	if room := roomOn(dir)(); room.bytes <= 0 || room.files == 0 || room.allFiles != roomAt(dir.Name())().allFiles {
		t.Errorf("%+v is free", room)
	}
	// In overlay mode commands write to the session's directory, here one that has
	// no size.
	for mode, known := range map[sandbox.WorkspaceMode]bool{sandbox.ModeBind: true, sandbox.ModeOverlay: false} {
		o := Options{Workspace: &Workspace{Dir: dir}, SandboxOptions: SandboxOptions{Mode: mode}}
		if room := newSessionDiskWatch(o, "/proc", nil).room(); (room != noRoom) != known {
			t.Errorf("%s: %+v", mode, room)
		}
	}
}
