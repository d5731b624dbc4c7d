package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stuck mounts a FUSE file system without a server, where every call hangs. release
// ends all of them with ENOTCONN.
func (l *layout) stuck(name string) (release func()) {
	l.t.Helper()
	needRoot(l.t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		l.t.Skipf("needs /dev/fuse: %v", err)
	}
	l.must(os.MkdirAll(l.path(name), 0o755))
	if err := unix.Mount("stuck", l.path(name), "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		_ = unix.Close(fd)
		l.t.Skipf("needs FUSE mounts: %v", err)
	}
	released := false
	release = func() {
		if !released {
			released = true
			_ = unix.Close(fd)
		}
	}
	l.t.Cleanup(func() {
		release()
		_ = unix.Unmount(l.path(name), unix.MNT_DETACH)
	})
	return release
}

// Acceptance A17: a stuck file system mounted inside the workspace is never
// accessed, so no call waits.
func TestStuckMountInside(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.file("f", "inside")
		l.stuck("stuck")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("waited for the stuck file system"))
		defer cancel()
		r, w := l.readerIn(walking, ReaderOptions{}), l.writerIn(walking)
		if _, err := r.ReadFile(ctx, "stuck/f", 0, 0); kindOf(err) != KindNotRegular {
			t.Errorf("read: %v, want %q", err, KindNotRegular)
		}
		if list, err := r.List(ctx, ".", 3); err != nil || len(list.Entries) != 2 || list.Entries[1].Type != TypeMount {
			t.Errorf("list: %+v, %v", list.Entries, err)
		}
		if _, err := r.List(ctx, "stuck", 3); kindOf(err) != KindNotRegular {
			t.Errorf("list: %v, want %q", err, KindNotRegular)
		}
		searched, err := r.Search(ctx, ".", SearchOptions{Visit: func(string, SearchResult) error { return nil }})
		if err != nil || len(searched.Incomplete) != 1 {
			t.Errorf("search: %+v, %v", searched, err)
		}
		for _, op := range []Op{
			{Kind: OpWrite, Path: "stuck/f"},
			{Kind: OpMkdir, Path: "stuck/a/b"},
			{Kind: OpDelete, Path: "stuck", Recursive: true},
			{Kind: OpRename, Path: "stuck", To: "s2"},
		} {
			if _, err := w.Apply(ctx, op); kindOf(err) != KindPermission {
				t.Errorf("%s: %v, want %q", op.Kind, err, KindPermission)
			}
		}
		if got, err := read(r, "f"); got != "inside" || err != nil {
			t.Errorf("read beside it: %q, %v", got, err)
		}
		if ctx.Err() != nil {
			t.Error(context.Cause(ctx))
		}
	})
}

// If the workspace itself is stuck, each call costs its deadline, stuck calls are
// counted, and beyond the bound calls fail at once.
func TestStuckWorkspace(t *testing.T) {
	l := newLayout(t)
	release := l.stuck("stuck")
	fd, err := unix.Open(l.path("stuck"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	l.must(err)
	dir := os.NewFile(uintptr(fd), "stuck")
	defer func() { _ = dir.Close() }()

	// Even making a Reader accesses the file system.
	if _, err := NewReader(dir, ReaderOptions{Deadline: 50 * time.Millisecond}); kindOf(errors.Unwrap(err)) != KindTimeout {
		t.Errorf("NewReader: %v, want a timeout", err)
	}

	// Only the stuck reader has a short deadline: a busy machine must not disturb
	// the other.
	r := l.reader(ReaderOptions{maxStuck: 3})
	if !r.guard.local {
		t.Log("the directory for temporary files is not on a local file system")
	}
	r.guard.local, r.guard.deadline = false, 50*time.Millisecond
	r.tree = &tree{dir: dir}
	for range 3 {
		if _, err := r.ReadFile(t.Context(), "f", 0, 0); kindOf(err) != KindTimeout {
			t.Errorf("read: %v, want %q", err, KindTimeout)
		}
	}
	if n := r.guard.stuck.Load(); n != 3 {
		t.Errorf("%d calls are counted as stuck, want 3", n)
	}
	r.guard.deadline = time.Hour
	if _, err := r.List(t.Context(), ".", 1); kindOf(err) != KindTimeout {
		t.Errorf("a call beyond the bound: %v, want %q at once", err, KindTimeout)
	}
	release()
	for range 3 { // each frees its slot
		r.guard.slots <- struct{}{}
	}
	if n := r.guard.stuck.Load(); n != 0 {
		t.Errorf("%d calls are counted as stuck after the release", n)
	}
	for range 3 {
		<-r.guard.slots
	}
	if _, err := r.ReadFile(t.Context(), "f", 0, 0); err == nil || kindOf(err) == KindTimeout {
		t.Errorf("read after the release: %v, want what the file system says", err)
	}
}

func TestCancelWhileStuck(t *testing.T) {
	l := newLayout(t)
	r := l.reader(ReaderOptions{Deadline: time.Hour})
	r.guard.local = false
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	block := make(chan struct{})
	_, err := runGuarded(ctx, r.guard, "x", func(context.Context) (int, error) {
		cancel(cause)
		<-block
		return 1, nil
	})
	if !errors.Is(err, cause) {
		t.Errorf("a call whose context ended: %v, want the cause", err)
	}
	close(block)
}
