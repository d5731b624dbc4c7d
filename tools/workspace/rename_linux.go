package workspace

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// rename moves an entry, a link as itself, to a name that is free. Folders
// that are missing in the new path are made.
func (w *Writer) rename(op Op, rel string, c *Change) error {
	to, e := w.prefixes.relative(op.To)
	if e != nil {
		return e
	}
	if rel == "." || to == "." {
		return op.fail(KindInvalid, "is the workspace itself, which can't be moved or replaced")
	}
	if to == rel || strings.HasPrefix(to, rel+"/") {
		return op.fail(KindInvalid, "can't be moved into itself")
	}
	from, err := w.find(rel, false, false)
	if err != nil {
		return err
	}
	defer from.close()
	if !from.exists {
		return unix.ENOENT
	}
	if err := from.compare(op); err != nil {
		return err
	}
	dest, err := w.find(to, true, false)
	if err != nil {
		return writeFault(op.To, err)
	}
	defer dest.close()
	c.To, c.Bytes = to, 0
	if typeOf(from.now.Mode) == TypeFile {
		c.Bytes = from.now.Size
	}
	if !dest.exists {
		err = renameAt(from.dir, from.name, dest.dir, dest.name, true)
	}
	if dest.exists || errors.Is(err, unix.EEXIST) {
		return &Error{Kind: KindExists, Path: op.To, Detail: "exists already; delete it first, or choose another name", Err: err}
	}
	return err
}

// compare checks IfSHA256, which only a file can meet.
func (p place) compare(op Op) error {
	if op.IfSHA256 == "" {
		return nil
	}
	data, whole, err := p.content(MaxWriteBytes)
	if err != nil {
		return err
	}
	if !whole {
		return op.fail(KindTooLarge, "the file is too large to be compared with what was shown")
	}
	return op.checkHash(true, data)
}

// linkTarget gives the path that a link in the folder dir means. It is not
// cleaned: what ".." means after another link is the kernel's to say.
func linkTarget(dir, target string) string {
	target = strings.TrimRight(target, "/")
	if dir == "." {
		return target
	}
	return dir + "/" + target
}
