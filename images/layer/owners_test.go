package layer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// Root gives files their owners and modes. An ordinary user owns all files, and
// can read and write where the image lets nobody.
func TestUnpackOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: several owners")
	}
	item := func(it imagetest.Item, mode int64, uid int) imagetest.Item {
		it.Mode, it.Uid, it.Gid = mode, uid, uid
		return it
	}
	layers := plainLayers(
		imagetest.Archive(t, item(imagetest.Directory("closed"), 0o555, 0), item(imagetest.File("closed/old", "x"), 0, 0), item(imagetest.File("program", "x"), 0o6111, 7)),
		imagetest.Archive(t, item(imagetest.File("closed/new", "x"), 0o640, 42), item(imagetest.Symlink("link", "program"), 0o777, 7), item(imagetest.Directory("shared"), 0o3777, 7)),
	)
	for uid, want := range map[int]map[string]string{
		0:    {"closed": "0 dr-xr-xr-x", "closed/old": "0 ----------", "closed/new": "42 -rw-r-----", "program": "7 ---x--x--x", "link": "7 Lrwxrwxrwx", "shared": "7 dtrwxrwxrwx"},
		4242: {"closed": "4242 drwxr-xr-x", "closed/old": "4242 -r--------", "closed/new": "4242 -rw-r-----", "program": "4242 -r-x--x--x", "link": "4242 Lrwxrwxrwx", "shared": "4242 dtrwxrwxrwx"},
	} {
		dir := t.TempDir()
		for _, err := range []error{os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, uid, uid)} {
			must(t, err)
		}
		errs := make(chan error)
		go func() {
			runtime.LockOSThread() // it ends with the goroutine, and the identity with it
			if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); err != 0 {
				errs <- err
				return
			}
			_, err := Unpack(context.Background(), dir, layers, Limits{}.WithDefaults(), true, func(Layer, int64) {})
			errs <- err
		}()
		must(t, <-errs)
		for name, want := range want {
			info, err := os.Lstat(filepath.Join(dir, name))
			must(t, err)
			if got := fmt.Sprintf("%d %v", info.Sys().(*syscall.Stat_t).Uid, info.Mode()); got != want {
				t.Errorf("by user %d: %s is %s, want %s", uid, name, got, want)
			}
		}
	}
}
