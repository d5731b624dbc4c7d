package workspace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenFile opens a file that may be in a workspace, as [os.OpenFile] does. It finds the
// file's directory as [OpenDir] does, refuses a symlink, and doesn't wait for the other
// end of a pipe.
func OpenFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := OpenDir(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // only held
	return openIn(dir, filepath.Base(abs), flags, mode)
}

// openIn opens a file in a directory that is held.
func openIn(dir *os.File, name string, flags int, mode fs.FileMode) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, uint32(mode.Perm()))
	if errors.Is(err, unix.ELOOP) {
		return nil, &Error{Kind: KindEscape, Path: path, Err: err, Detail: "is a symlink"}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
