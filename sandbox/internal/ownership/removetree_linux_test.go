package ownership

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// A tree in which their owner may not enter directories, at any depth, is removed
// by root and by an ordinary user.
func TestRemoveHostileTree(t *testing.T) {
	for name, uid := range map[string]int{"caller": os.Geteuid(), "user": 4242} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 && uid != os.Geteuid() {
				t.Skip("needs root: another user")
			}
			base := t.TempDir()
			must(t, os.Chmod(filepath.Dir(base), 0o755))
			must(t, os.Chown(base, uid, -1))
			errs := make(chan error)
			go func() {
				runtime.LockOSThread() // it ends with the goroutine, and the identity with it
				if uid != os.Geteuid() {
					if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); err != 0 {
						errs <- err
						return
					}
				}
				errs <- removeHostileTree(base)
			}()
			must(t, <-errs)
			if _, err := os.Lstat(filepath.Join(base, "tree")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the tree is still there: %v", err)
			}
		})
	}
}

// removeHostileTree makes a tree in base and removes it.
func removeHostileTree(base string) error {
	dir, err := os.Open(base)
	if err != nil {
		return err
	}
	defer dir.Close()
	const levels = 400 // paths end at some 100
	at, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	for i := 0; i < levels && err == nil; i++ {
		name := fmt.Sprintf("a-directory-with-a-longer-name-%d", i)
		if i == 0 {
			name = "tree"
		}
		if err = unix.Mkdirat(at, name, 0o700); err != nil {
			break
		}
		next, openErr := unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err = openErr; err != nil {
			break
		}
		for _, make := range []func() error{
			func() error { return unix.Mkdirat(next, ".removed-1", 0) }, // the name of a moved directory
			func() error { return unix.Symlinkat("/", next, "link") },
			func() error { return unix.Mknodat(next, "pipe", unix.S_IFIFO, 0) },
		} {
			err = errors.Join(err, make())
		}
		if i > 0 {
			err = errors.Join(err, unix.Fchmod(at, uint32(i%2)*0o500))
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	if err != nil {
		return err
	}
	return workspace.RemoveTreeAt(dir, "tree")
}
