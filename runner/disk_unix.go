//go:build linux || darwin

package runner

import (
	"os"

	"golang.org/x/sys/unix"
)

// roomOn returns what is left for ordinary users on the file system that a
// directory is on.
func roomOn(dir *os.File) func() diskRoom {
	return func() diskRoom {
		raw, err := dir.SyscallConn()
		if err != nil {
			return noRoom
		}
		room := noRoom
		err = raw.Control(func(fd uintptr) {
			var fs unix.Statfs_t
			err := unix.Fstatfs(int(fd), &fs)
			room = roomOf(&fs, err)
		})
		if err != nil {
			return noRoom
		}
		return room
	}
}

// roomAt is roomOn by a path.
func roomAt(dir string) func() diskRoom {
	return func() diskRoom {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		return roomOf(&fs, err)
	}
}

// roomOf reads the answer of statfs(2). Some file systems have no size, and
// others (btrfs) no bound on files: their counts are 0.
func roomOf(fs *unix.Statfs_t, err error) diskRoom {
	room := noRoom
	if err != nil {
		return room
	}
	if fs.Blocks > 0 {
		room.bytes = int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // 32 bits on some systems
	}
	if fs.Files > 0 {
		room.files, room.allFiles = int64(fs.Ffree), int64(fs.Files)
	}
	return room
}
