package workspace

import (
	"context"

	"golang.org/x/sys/unix"
)

func (w *Writer) deleteFile(ctx context.Context, op Op, rel string, c *Change) error {
	if rel == "." {
		return op.newError(KindInvalid, "is the workspace itself, which can't be deleted")
	}
	p, err := w.findEntry(rel, false)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case !p.exists:
		return unix.ENOENT
	case typeOf(p.stat.Mode) == TypeDir && !op.Recursive:
		return op.newError(KindIsDir, "is a directory; set recursive to delete it with all that is in it")
	case typeOf(p.stat.Mode) == TypeDir:
		if op.IfSHA256 != "" {
			return op.newError(KindConflict, "is a directory; it was not when the change was shown")
		}
		return w.removeTree(ctx, p, c)
	}
	if err := p.keepContent(op, c); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Unlinkat(p.dir, p.name, 0) }); err != nil {
		return err
	}
	c.Removed = 1
	return nil
}

// keepContent records the content of a file that is to be deleted. A file that
// can't be read is deleted nevertheless, unless its hash had to be compared.
func (p dirEntry) keepContent(op Op, c *Change) error {
	if typeOf(p.stat.Mode) != TypeFile {
		if op.IfSHA256 != "" {
			return op.newError(KindConflict, "is no regular file; it was one when the change was shown")
		}
		return nil
	}
	before, whole, err := p.readContent(MaxWriteBytes)
	if op.IfSHA256 != "" {
		if err != nil {
			return err
		}
		if !whole {
			return op.newError(KindTooLarge, "the file is too large to be compared with what was shown")
		}
		if err := op.checkHash(true, before); err != nil {
			return err
		}
	}
	c.recordBefore(p, before, whole && err == nil)
	return nil
}

func (w *Writer) removeTree(ctx context.Context, p dirEntry, c *Change) error {
	r := removal{parent: p.dir, path: c.Path, open: w.tree.openOnMount, most: w.maxRemove}
	err := r.removeTree(ctx, p.name)
	c.Removed = r.removed
	return err
}

// openOnMount opens a directory for reading, if it is on the tree's mount.
func (t *tree) openOnMount(parent int, name string) (int, statResult, error) {
	fd, err := openDirAt(parent, name)
	if err != nil {
		return -1, statResult{}, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && f.mount != t.mount {
		err = ErrMount
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, f, err
}
