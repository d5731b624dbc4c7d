package diskwatch

import (
	"os"

	"golang.org/x/sys/unix"
)

// RoomOn returns what is left for ordinary users on the file system that a
// directory is on.
func RoomOn(dir *os.File) func() Room {
	return func() Room {
		raw, err := dir.SyscallConn()
		if err != nil {
			return UnknownRoom
		}
		room := UnknownRoom
		err = raw.Control(func(fd uintptr) {
			var fs unix.Statfs_t
			err := unix.Fstatfs(int(fd), &fs)
			room = roomOf(&fs, err)
		})
		if err != nil {
			return UnknownRoom
		}
		return room
	}
}

// RoomAt is roomOn by a path.
func RoomAt(dir string) func() Room {
	return func() Room {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		return roomOf(&fs, err)
	}
}

// roomOf reads the answer of statfs(2). Some file systems have no size, and
// others (btrfs) no bound on files: their counts are 0.
func roomOf(fs *unix.Statfs_t, err error) Room {
	room := UnknownRoom
	if err != nil {
		return room
	}
	if fs.Blocks > 0 {
		room.Bytes = int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // 32 bits on some systems
	}
	if fs.Files > 0 {
		room.Files, room.AllFiles = int64(fs.Ffree), int64(fs.Files)
	}
	return room
}
