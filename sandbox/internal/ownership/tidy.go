package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// tidySessionDir removes from a session's directory what is in no list: the
// socket on which its owner accepted commands. It removes the directory too if
// that is empty and no longer used.
func tidySessionDir(stateDir, dir string, removeDir bool) error {
	base, err := openSessionDir(stateDir, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { _ = base.Close() }()
	if err := removeSocket(int(base.Fd())); err != nil || !removeDir {
		return err
	}
	parent, err := openSessionDir(stateDir, path.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	err = unix.Unlinkat(int(parent.Fd()), path.Base(dir), unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove directory %s: %w", dir, err)
	}
	return nil
}

func removeSocket(base int) error {
	var st unix.Stat_t
	err := unix.Fstatat(base, sandbox.ExecSocket, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(base, sandbox.ExecSocket, 0)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", sandbox.ExecSocket, err)
	}
	return nil
}
