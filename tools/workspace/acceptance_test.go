package workspace

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// naiveDelete is the wrong way: it resolves a name and removes everything there.
func naiveDelete(path string) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			naiveDelete(filepath.Join(path, e.Name()))
		}
	}
	_ = os.Remove(path)
}

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

// immutable sets the attribute that keeps even root from removing a file. It
// reports whether the file system supports it.
func (l *layout) immutable(name string) bool {
	l.t.Helper()
	f, err := os.Open(l.path(name))
	l.must(err)
	defer func() { _ = f.Close() }()
	set := func(flags int) error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) }
	if set(immutableFlag) != nil {
		return false
	}
	l.t.Cleanup(func() {
		again, err := os.Open(l.path(name))
		if err == nil {
			_ = unix.IoctlSetPointerInt(int(again.Fd()), unix.FS_IOC_SETFLAGS, 0)
			_ = again.Close()
		}
	})
	return true
}

// Acceptance A23: a recursive delete never leaves the workspace. A file that can't
// be removed is an error that says how far it got, not a loop.
func TestDeleteOfHostileTrees(t *testing.T) {
	plant := func(l *layout) {
		for _, name := range []string{"tree/a", "tree/sub/b", "tree/closed/c"} {
			l.file(name, "x")
		}
		l.link("tree/out", l.outside)
		l.link("tree/file", filepath.Join(l.outside, "canary"))
		l.must(os.Chmod(l.path("tree/closed"), 0))
	}
	control := newLayout(t)
	plant(control)
	before := control.hash()
	naiveDelete(control.path("tree"))
	if control.hash() == before {
		t.Error("control: the naive delete did not reach what is outside")
	}
	modes(t, func(t *testing.T, walking bool) {
		needRoot(t)
		l := newLayout(t)
		plant(l)
		// The control would follow these out of the test.
		l.link("tree/root", "/")
		l.link("tree/up", "../..")
		l.link("tree/self", ".")
		before := l.hash()
		if c, err := l.writerIn(walking).Apply(t.Context(), Op{Kind: OpDelete, Path: "tree", Recursive: true}); err != nil || c.Removed != 11 {
			t.Errorf("delete: %d removed, %v; want all 11", c.Removed, err)
		}
		if l.content("tree") != "absent" || l.hash() != before {
			t.Error("something is left inside, or has changed outside")
		}
	})
	modes(t, func(t *testing.T, walking bool) {
		needRoot(t)
		l := newLayout(t)
		plant(l)
		if !l.immutable("tree/sub/b") {
			t.Skip("needs a file system with immutable files")
		}
		c, err := l.writerIn(walking).Apply(t.Context(), Op{Kind: OpDelete, Path: "tree", Recursive: true})
		if kindOf(err) != KindPermission || l.content("tree/sub/b") != "x" {
			t.Errorf("delete of what can't be removed: %+v, %v, want %q", c, err, KindPermission)
		}
	})
	modes(t, func(t *testing.T, walking bool) {
		needRoot(t)
		l := newLayout(t)
		l.file("tree/sub/mnt/covered", "")
		l.bind(l.outside, "tree/sub/mnt")
		before := l.hash()
		c, err := l.writerIn(walking).Apply(t.Context(), Op{Kind: OpDelete, Path: "tree", Recursive: true})
		if kindOf(err) != KindPermission || l.hash() != before {
			t.Errorf("delete of what is mounted: %+v, %v, want %q and nothing changed", c, err, KindPermission)
		}
		// The control: a plain recursive delete removes what is mounted there.
		if _ = os.RemoveAll(l.path("tree")); l.hash() == before {
			t.Error("control: the plain delete did not reach what is mounted")
		}
	})
}

// The control of A17: a plain read of the stuck file system hangs until it is
// released, after ours have all returned. The control of A11: reads are measured.
func TestStuckMountControl(t *testing.T) {
	l := newLayout(t)
	release := l.stuck("stuck")
	plain := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(l.path("stuck"))
		plain <- err
	}()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("waited for the stuck file system"))
	defer cancel()
	r := l.reader(ReaderOptions{})
	for range 100 {
		if _, err := r.List(ctx, ".", 3); err != nil {
			t.Errorf("list: %v", err)
		}
		if _, err := r.Stat(ctx, "stuck"); kindOf(err) == KindTimeout {
			t.Errorf("stat: %v", err)
		}
	}
	select {
	case err := <-plain:
		t.Fatalf("control: the plain read came back: %v", err)
	default:
	}
	release()
	if err := <-plain; err == nil {
		t.Error("control: the plain read succeeded")
	}
}
