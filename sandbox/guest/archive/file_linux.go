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

// directoryFlag refuses to open what has become no directory.
const directoryFlag = syscall.O_DIRECTORY

// identifyFile returns the identity of a file, if it is known. The number of its
// names is part of it.
func identifyFile(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{st.Dev, st.Ino, uint64(st.Nlink)}, true //nolint:unconvert // its type differs between architectures
}

// changedSince reports whether a file, or what the kernel keeps about it, has changed
// since a time.
func changedSince(info fs.FileInfo, since time.Time) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || !time.Unix(int64(st.Ctim.Sec), int64(st.Ctim.Nsec)).Before(since) //nolint:unconvert // their types differ between architectures
}

// isOverlay reports whether a directory is in an overlay, the kernel's or gVisor's.
func isOverlay(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// nextData returns where data of a file begins, from an offset on, and where that data ends: at the
// offset and the end of the file if the file system does not tell.
func nextData(f *os.File, at, size int64) (start, end int64) {
	start, err := f.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // there is none
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
