package workspace

import "golang.org/x/sys/unix"

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
	if !p.exists {
		return unix.ENOENT
	}
	return setMode(op, p.now, c, func(mode uint32) error { return unix.Fchmodat(p.dir, p.name, mode, 0) })
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
