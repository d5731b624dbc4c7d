package overlay

import (
	"path/filepath"
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
