//go:build linux || darwin

package runner

import (
	"os"

	"golang.org/x/sys/unix"
)

// freeOn gives the room that is left for ordinary users on the file system that
// a folder is on.
func freeOn(folder *os.File) func() (int64, bool) {
	return func() (n int64, ok bool) {
		raw, err := folder.SyscallConn()
		if err != nil {
			return 0, false
		}
		err = raw.Control(func(fd uintptr) {
			var fs unix.Statfs_t
			err := unix.Fstatfs(int(fd), &fs)
			n, ok = room(&fs, err)
		})
		return n, ok && err == nil
	}
}

// freeAt is freeOn by a path.
func freeAt(folder string) func() (int64, bool) {
	return func() (int64, bool) {
		var fs unix.Statfs_t
		err := unix.Statfs(folder, &fs)
		return room(&fs, err)
	}
}

func room(fs *unix.Statfs_t, err error) (n int64, ok bool) {
	if err != nil || fs.Blocks == 0 { // some file systems have no size
		return 0, false
	}
	return int64(fs.Bavail) * int64(fs.Bsize), true //nolint:unconvert // 32 bits on some systems
}
