package workspace

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

func (w *Writer) delete(ctx context.Context, op Op, rel string, c *Change) error {
	if rel == "." {
		return op.fail(KindInvalid, "is the workspace itself, which can't be deleted")
	}
	p, err := w.find(rel, false, false)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case !p.exists:
		return unix.ENOENT
	case typeOf(p.now.Mode) == TypeDir && !op.Recursive:
		return op.fail(KindIsDir, "is a folder; set recursive to delete it with all that is in it")
	case typeOf(p.now.Mode) == TypeDir:
		if op.IfSHA256 != "" {
			return op.fail(KindConflict, "is a folder; it was not when the change was shown")
		}
		return w.removeTree(ctx, p, c)
	}
	if err := p.keep(op, c); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Unlinkat(p.dir, p.name, 0) }); err != nil {
		return err
	}
	c.Removed = 1
	return nil
}

// keep remembers the content of a file that is to be deleted. One that can't
// be read is deleted all the same, unless it was to be compared.
func (p place) keep(op Op, c *Change) error {
	if typeOf(p.now.Mode) != TypeFile {
		if op.IfSHA256 != "" {
			return op.fail(KindConflict, "is no regular file; it was one when the change was shown")
		}
		return nil
	}
	before, whole, err := p.content(MaxWriteBytes)
	if op.IfSHA256 != "" {
		if err != nil {
			return err
		}
		if !whole {
			return op.fail(KindTooLarge, "the file is too large to be compared with what was shown")
		}
		if err := op.checkHash(true, before); err != nil {
			return err
		}
	}
	c.remember(p, before, whole && err == nil)
	return nil
}

// removal is one recursive delete. It holds one folder open at a time and goes
// back up by "..", which must then be the very folder that it came from; so
// depth costs no descriptors and no path is ever built.
type removal struct {
	mount  mountID
	most   int
	seen   int
	frames []frame
	dir    int
	change *Change
}

// frame is a folder on the way down: its name in the one above, what it is,
// and the names in it that are still to be removed.
type frame struct {
	name     string
	dev, ino uint64
	left     []dirName
}

func (w *Writer) removeTree(ctx context.Context, p place, c *Change) (err error) {
	r := removal{mount: w.tree.mount, most: w.maxRemove, change: c}
	if r.dir, err = p.again(); err != nil {
		return err
	}
	defer func() { _ = unix.Close(r.dir) }()
	if err := r.enter(p.name); err != nil {
		return err
	}
	for len(r.frames) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.step(p); err != nil {
			return err
		}
	}
	return nil
}

// step removes one entry of the current folder, or enters it, or, where none
// is left, removes the folder itself from the one above.
func (r *removal) step(p place) error {
	top := &r.frames[len(r.frames)-1]
	if len(top.left) == 0 {
		names, err := r.names()
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return r.leave(p)
		}
		top.left = names
	}
	e := top.left[0]
	top.left = top.left[1:]
	var err error = unix.EISDIR
	if e.typ != TypeDir {
		err = r.unlink(e.name, 0)
	}
	if errors.Is(err, unix.EISDIR) {
		err = r.unlink(e.name, unix.AT_REMOVEDIR)
	}
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return r.enter(e.name)
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("remove %q: %w", e.name, err)
	}
	return nil
}

func (r *removal) unlink(name string, flags int) error {
	err := retry(func() error { return unix.Unlinkat(r.dir, name, flags) })
	if err == nil {
		r.change.Removed++
	}
	return err
}

// names reads what is in the current folder now.
func (r *removal) names() ([]dirName, error) {
	if _, err := unix.Seek(r.dir, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	names, _, err := readNames(r.dir, maxDirNames*MaxNameBytes)
	if r.seen += len(names); r.seen > r.most {
		return nil, &Error{
			Kind: KindTooLarge, Path: abbreviate(r.change.Path),
			Detail: fmt.Sprintf("holds more than %d entries; %d were deleted", r.most, r.change.Removed),
		}
	}
	return names, err
}

// enter goes down into name, if that is a folder on the workspace's mount.
func (r *removal) enter(name string) error {
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

// leave goes back up and removes the folder that it came from.
func (r *removal) leave(p place) error {
	last := r.frames[len(r.frames)-1]
	r.frames = r.frames[:len(r.frames)-1]
	up, err := r.above(p)
	if err != nil {
		return err
	}
	_ = unix.Close(r.dir)
	r.dir = up
	return r.unlink(last.name, unix.AT_REMOVEDIR)
}

func (r *removal) above(p place) (int, error) {
	if len(r.frames) == 0 {
		return p.again()
	}
	want := r.frames[len(r.frames)-1]
	fd, err := openat(r.dir, "..", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && (f.Dev != want.dev || f.Ino != want.ino) {
		err = &Error{
			Kind: KindConflict, Path: abbreviate(r.change.Path),
			Detail: fmt.Sprintf("was moved while it was being deleted; %d entries were deleted", r.change.Removed),
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// again gives a descriptor of the entry's folder that is the caller's to close.
func (p place) again() (int, error) {
	return unix.FcntlInt(uintptr(p.dir), unix.F_DUPFD_CLOEXEC, 0)
}
