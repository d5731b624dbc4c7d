package workspace

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// chmod sets the mode of a folder. It needs no permission in the folder, only
// that it belongs to who asks and that the way to it can be gone.
func (w *Writer) chmod(op Op, rel string, c *Change) error {
	if op.Mode&^0o7777 != 0 {
		return op.fail(KindInvalid, "can't be given such a mode")
	}
	if rel == "." { // its own descriptor: "." could not be looked up in it
		return w.tree.with(func(fd int) error {
			f, err := statx(fd, "", unix.AT_EMPTY_PATH)
			if err != nil {
				return err
			}
			return setMode(op, f, c, func(mode uint32) error { return unix.Fchmod(fd, mode) })
		})
	}
	p, err := w.find(rel, false, false)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case !p.exists:
		return unix.ENOENT
	case typeOf(p.now.Mode) != TypeDir:
		return unix.ENOTDIR
	}
	// The folder is held before its mode is set: by its name a link that took
	// its place meanwhile would be followed.
	fd, err := openat(p.dir, p.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	now, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	if now.mount != w.tree.mount {
		return ErrMount
	}
	return setMode(op, now, c, func(mode uint32) error { return chmodHeld(fd, mode) })
}

// chmodHeld sets the mode of a folder that is held by O_PATH. That takes a path
// through /proc, since fchmod(2) refuses such a descriptor and fchmodat2(2) with
// AT_EMPTY_PATH came with Linux 6.6. Where there is no /proc, the folder's own "."
// does for one that can be searched.
func chmodHeld(fd int, mode uint32) error {
	err := unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), mode, 0)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Fchmodat(fd, ".", mode, 0)
	}
	return err
}

func setMode(op Op, now facts, c *Change, set func(mode uint32) error) error {
	if typeOf(now.Mode) != TypeDir {
		return unix.ENOTDIR
	}
	c.Mode = now.Mode & 0o7777
	mode := op.Mode
	if op.Add {
		mode |= c.Mode
	}
	if mode == c.Mode {
		return nil
	}
	return retry(func() error { return set(mode) })
}
