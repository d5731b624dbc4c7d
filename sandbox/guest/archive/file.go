package archive

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openFlags open a file without following a symlink at its end, and without
// waiting for the other end of a pipe.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC

// statOf returns what the kernel reports about a file.
func statOf(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// identifyFile returns a file's identity and number of names.
func identifyFile(info fs.FileInfo) fileID {
	st := statOf(info)
	return fileID{st.Dev, st.Ino, uint64(st.Nlink)} //nolint:unconvert // its type differs between architectures
}

func ownerOf(info fs.FileInfo) owner { return owner{int(statOf(info).Uid), int(statOf(info).Gid)} }

// changedSince reports whether a file's inode has changed since a time.
func changedSince(info fs.FileInfo, since time.Time) bool {
	changed := statOf(info).Ctim
	return !time.Unix(int64(changed.Sec), int64(changed.Nsec)).Before(since) //nolint:unconvert // their types differ between architectures
}

// isOverlay reports whether a directory is in an overlay, the kernel's or
// gVisor's.
func isOverlay(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// nextData returns the start and end of the first data at or after an offset.
// If the file system doesn't know, it returns the offset and the end of the
// file.
func nextData(f *os.File, at, size int64) (start, end int64) {
	start, err := f.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // no more data
		return size, size
	}
	if err == nil {
		end, err = f.Seek(start, unix.SEEK_HOLE)
	}
	if err != nil || end <= start {
		return at, size
	}
	return start, min(end, size)
}
