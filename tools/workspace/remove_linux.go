package workspace

import (
	"context"
	"errors"
	"fmt"

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

// removal is one recursive delete. It holds one directory open at a time and goes
// back up by "..", which must then be the very directory that it came from; so
// depth costs no descriptors and no path is ever built.
type removal struct {
	mount  mountID
	most   int
	seen   int
	frames []frame
	dir    int
	change *Change
}

// frame is a directory on the way down: its name in the one above, what it is,
// and the names in it that are still to be removed.
type frame struct {
	name     string
	dev, ino uint64
	left     []dirName
}

func (w *Writer) removeTree(ctx context.Context, p dirEntry, c *Change) (err error) {
	r := removal{mount: w.tree.mount, most: w.maxRemove, change: c}
	if r.dir, err = p.reopenDir(); err != nil {
		return err
	}
	defer func() { _ = unix.Close(r.dir) }()
	if err := r.enterDirectory(p.name); err != nil {
		return err
	}
	for len(r.frames) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.removeNext(p); err != nil {
			return err
		}
	}
	return nil
}

// removeNext removes one entry of the current directory, or enters it. If there
// is none left, it removes the directory itself from its parent.
func (r *removal) removeNext(p dirEntry) error {
	top := &r.frames[len(r.frames)-1]
	if len(top.left) == 0 {
		names, err := r.readNames()
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return r.leaveDirectory(p)
		}
		top.left = names
	}
	e := top.left[0]
	top.left = top.left[1:]
	var err error = unix.EISDIR
	if e.typ != TypeDir {
		err = r.unlinkEntry(e.name, 0)
	}
	if errors.Is(err, unix.EISDIR) {
		err = r.unlinkEntry(e.name, unix.AT_REMOVEDIR)
	}
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return r.enterDirectory(e.name)
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("remove %q: %w", e.name, err)
	}
	return nil
}

func (r *removal) unlinkEntry(name string, flags int) error {
	err := retry(func() error { return unix.Unlinkat(r.dir, name, flags) })
	if err == nil {
		r.change.Removed++
	}
	return err
}

// readNames reads the names in the current directory.
func (r *removal) readNames() ([]dirName, error) {
	if _, err := unix.Seek(r.dir, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	names, _, err := readNames(r.dir, maxDirNames*MaxNameBytes)
	if r.seen += len(names); r.seen > r.most {
		return nil, &Error{
			Kind: KindTooLarge, Path: abbreviatePath(r.change.Path),
			Detail: fmt.Sprintf("holds more than %d entries; %d were deleted", r.most, r.change.Removed),
		}
	}
	return names, err
}

// enterDirectory goes down into name, if that is a directory on the workspace's
// mount.
func (r *removal) enterDirectory(name string) error {
	fd, err := openDirAt(r.dir, name)
	if err != nil {
		return err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && f.mount != r.mount {
		err = ErrMount
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	_ = unix.Close(r.dir)
	r.dir = fd
	r.frames = append(r.frames, frame{name: name, dev: f.Dev, ino: f.Ino})
	return nil
}

// leaveDirectory goes back up and removes the directory that it came from.
func (r *removal) leaveDirectory(p dirEntry) error {
	last := r.frames[len(r.frames)-1]
	r.frames = r.frames[:len(r.frames)-1]
	up, err := r.openParent(p)
	if err != nil {
		return err
	}
	_ = unix.Close(r.dir)
	r.dir = up
	return r.unlinkEntry(last.name, unix.AT_REMOVEDIR)
}

func (r *removal) openParent(p dirEntry) (int, error) {
	if len(r.frames) == 0 {
		return p.reopenDir()
	}
	want := r.frames[len(r.frames)-1]
	fd, err := openat(r.dir, "..", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && (f.Dev != want.dev || f.Ino != want.ino) {
		err = &Error{
			Kind: KindConflict, Path: abbreviatePath(r.change.Path),
			Detail: fmt.Sprintf("was moved while it was being deleted; %d entries were deleted", r.change.Removed),
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// reopenDir returns a descriptor of the entry's directory, which the caller
// closes.
func (p dirEntry) reopenDir() (int, error) {
	return unix.FcntlInt(uintptr(p.dir), unix.F_DUPFD_CLOEXEC, 0)
}
