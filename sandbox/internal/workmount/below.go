package workmount

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// openBelow opens a file in the workspace through the open directory: without
// following symlinks, crossing mounts or leaving the workspace.
func openBelow(workspace *os.File, name string, flags uint64) (*os.File, error) {
	return openBeneath(workspace, name, flags, unix.RESOLVE_NO_XDEV)
}

func openBeneath(workspace *os.File, name string, flags, extra uint64) (*os.File, error) {
	how := &unix.OpenHow{
		// Without O_NOFOLLOW: with it, and O_PATH, a symlink at the end is no error
		// but is opened itself, RESOLVE_NO_SYMLINKS or not (openat2(2)).
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | extra,
	}
	for range 32 { // EAGAIN: a name on the way is changed meanwhile; openat2(2)
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

// kindOf returns the type bits of a file in the workspace, or those of the
// symlink itself if it is one.
func kindOf(workspace *os.File, name string) (uint32, error) {
	f, err := openBelow(workspace, name, unix.O_PATH)
	if errors.Is(err, unix.ELOOP) {
		return unix.S_IFLNK, nil // on the way there or at its end
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

// readSmall reads a small regular file of the workspace, without the line end.
func readSmall(workspace *os.File, name string) (string, error) {
	f, err := openBelow(workspace, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("not a regular file"))
	}
	const pathMax = 4096 // limits.h: what git could use of it
	data, err := io.ReadAll(io.LimitReader(f, pathMax+1))
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}
