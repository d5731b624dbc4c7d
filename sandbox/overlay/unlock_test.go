package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReleaseUnlocks: layers are free once they were released, also if a process that was being
// started meanwhile has a copy of the lock's descriptor.
func TestReleaseUnlocks(t *testing.T) {
	dir := t.TempDir()
	for path, lock := range map[string]func() (release func(), err error){
		dir: func() (func(), error) { return lockLayers(dir) },
		filepath.Join(dir, lockFile): func() (func(), error) {
			l := &Layers{dir: dir}
			return func() { _ = l.Close() }, l.acquireLock()
		},
	} {
		release, err := lock()
		if err != nil {
			t.Fatal(err)
		}
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		copies := 0
		for _, fd := range fds {
			if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err != nil || to != path {
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
			t.Fatalf("the lock of %s has no descriptor", path)
		}
		if _, err := lock(); !errors.Is(err, ErrBusy) {
			t.Errorf("control: %s: %v", path, err)
		}
		release()
		release, err = lock()
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
}
