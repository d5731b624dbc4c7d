package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseUnlocks: layers are free after Close, also if a process that was being started
// meanwhile has a copy of the lock's descriptor. The control is a lock that is only closed.
func TestCloseUnlocks(t *testing.T) {
	for _, unlocks := range []bool{true, false} {
		l := &Layers{dir: t.TempDir()}
		if err := l.acquireLock(); err != nil {
			t.Fatal(err)
		}
		other, err := unix.Dup(int(l.lock.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if unlocks {
			err = l.Close()
		} else {
			err = l.lock.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		next := &Layers{dir: l.dir}
		if err := next.acquireLock(); (err == nil) != unlocks {
			t.Errorf("%s: %v", filepath.Join(l.dir, lockFile), err)
		}
		if err := unix.Close(other); err != nil {
			t.Fatal(err)
		}
		_ = next.Close() // it has no lock in the control
	}
}

// TestReleaseUnlocks is TestCloseUnlocks for the lock of a directory.
func TestReleaseUnlocks(t *testing.T) {
	dir := t.TempDir()
	release, err := lockLayers(dir)
	if err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err != nil || to != dir {
			continue
		}
		n, err := strconv.Atoi(fd.Name())
		if err == nil {
			n, err = unix.Dup(n) // as a process has it that is being started
		}
		if err != nil {
			t.Fatal(err)
		}
		copies++
		defer func() { _ = unix.Close(n) }()
	}
	if copies == 0 {
		t.Fatal("the lock has no descriptor")
	}
	if _, err := lockLayers(dir); !errors.Is(err, ErrBusy) {
		t.Errorf("control: %v", err)
	}
	release()
	release, err = lockLayers(dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
}
