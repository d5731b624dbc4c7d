package ownership

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openSessionDir opens a session's directory below the state directory without
// following symlinks below it.
func openSessionDir(stateDir, dir string) (*os.File, error) {
	state, err := os.Open(stateDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	fd, err := openBeneath(int(state.Fd()), dir)
	if err != nil {
		return nil, &os.PathError{Op: "open session directory", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

func existsBelow(base *os.File, name string) bool {
	fd, err := unix.Openat2(int(base.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: beneath &^ unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return !errors.Is(err, unix.ENOENT)
	}
	unix.Close(fd)
	return true
}
