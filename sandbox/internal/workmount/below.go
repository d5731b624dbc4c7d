package workmount

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// openBelow opens a file in the workspace without following symlinks, crossing
// mounts or leaving the workspace.
func openBelow(workspace *os.File, name string, flags uint64) (*os.File, error) {
	return openBeneath(workspace, name, flags, unix.RESOLVE_NO_XDEV)
}

func openBeneath(workspace *os.File, name string, flags, extra uint64) (*os.File, error) {
	how := &unix.OpenHow{
		// Not O_NOFOLLOW: with O_PATH, it would open a final symlink itself
		// despite RESOLVE_NO_SYMLINKS (openat2(2)).
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | extra,
	}
	for range 32 { // EAGAIN: a rename raced with the lookup, see openat2(2)
		fd, err := unix.Openat2(int(workspace.Fd()), name, how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
		}
	}
	return nil, &os.PathError{Op: "openat2", Path: name, Err: unix.EAGAIN}
}

// kindOf returns a file's type bits: S_IFLNK if it or a directory in its path
// is a symlink.
func kindOf(workspace *os.File, name string) (uint32, error) {
	f, err := openBelow(workspace, name, unix.O_PATH)
	if errors.Is(err, unix.ELOOP) {
		return unix.S_IFLNK, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Mode & unix.S_IFMT, nil
}

// readSmall reads a small regular file of the workspace, without line ends.
func readSmall(workspace *os.File, name string) (string, error) {
	f, err := openBelow(workspace, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	return readPath(f)
}

// readPath reads and closes a regular file that contains a path, without line
// ends.
func readPath(f *os.File) (string, error) {
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, unix.PathMax))
	return strings.TrimRight(string(data), "\r\n"), err
}
