package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultMaxRemove bounds a recursive delete. A node_modules directory has some ten
// thousand entries; a million is a mistake or an attack.
const defaultMaxRemove = 1_000_000

// WriterOptions configures a [Writer].
type WriterOptions struct {
	// HostPath and ContainerPath are as in [ReaderOptions].
	HostPath, ContainerPath string
}

// Writer changes files below one directory. Only the guest links it: it runs in the
// container as the commands' user, so the kernel and the container's mounts bound
// it too.
//
// A Writer works on its caller's goroutine and makes only system calls that act on
// the calling thread. So a caller that has locked its thread and switched the
// thread's credentials writes with those. Methods are safe for concurrent use; of
// two concurrent changes of a file, one wins. The caller closes the directory after
// the last call.
//
// Symlinks in the directories of a path are followed if they stay inside. Writes
// and patches refuse a symlink at the end, because a change applies to the file
// that its path names; [FollowLink] finds the target's path. Delete and rename act
// on the symlink itself.
//
// Files are replaced, never changed in place: a new file is written, synced and
// renamed over the old one. So other hard links keep the old content, and readers
// see either the old or the new content.
type Writer struct {
	tree      *tree
	broken    error
	prefixes  prefixes
	maxRemove int
}

// NewWriter returns a Writer for dir. If dir is not an open directory, every Apply
// fails.
func NewWriter(dir *os.File, o WriterOptions) *Writer {
	t, err := newTree(dir)
	return &Writer{
		tree: t, broken: err,
		prefixes:  newPrefixes(o.HostPath, o.ContainerPath),
		maxRemove: defaultMaxRemove,
	}
}

// Apply makes one change and describes it. Its error is an [*Error], or wraps
// context.Cause(ctx). Cancelling takes effect between two system calls, before the
// rename that makes a change visible. After an error the Change tells what a
// recursive delete had removed.
func (w *Writer) Apply(ctx context.Context, op Op) (Change, error) {
	if w.broken != nil {
		return Change{Kind: op.Kind}, &Error{Kind: KindIO, Path: op.Path, Detail: "the workspace directory is not open", Err: w.broken}
	}
	if ctx.Err() != nil {
		return Change{Kind: op.Kind}, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	}
	rel, e := w.prefixes.relativePath(op.Path)
	if e != nil {
		return Change{Kind: op.Kind}, e
	}
	c := Change{Kind: op.Kind, Path: rel}
	err := w.applyOp(ctx, op, rel, &c)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return c, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	}
	if err != nil {
		return c, writeFault(op.Path, err)
	}
	return c, nil
}

func (w *Writer) applyOp(ctx context.Context, op Op, rel string, c *Change) error {
	directory := strings.HasSuffix(op.Path, "/")
	switch op.Kind {
	case OpWrite, OpAppend:
		if directory || rel == "." {
			return op.newError(KindIsDir, "names a directory; name a file")
		}
		return w.writeFile(ctx, op, rel, c)
	case OpPatch:
		return w.patchFile(ctx, op, rel, c)
	case OpDelete:
		return w.deleteFile(ctx, op, rel, c)
	case OpMkdir:
		dir, created, err := w.makeDirs(rel)
		if err == nil {
			_ = unix.Close(dir)
		}
		c.Created = created
		return err
	case OpRename:
		return w.renameFile(op, rel, c)
	case OpChmod:
		return w.chmodDirectory(op, rel, c)
	}
	return op.newError(KindInvalid, fmt.Sprintf("there is no change named %q", op.Kind))
}

// writeFault is newError for changes: another mount is one that the session
// protects, such as a read-only .git.
func writeFault(path string, err error) *Error {
	if errors.Is(err, ErrMount) || errors.Is(err, unix.EXDEV) && !errors.Is(err, errEscape) {
		return &Error{
			Kind: KindPermission, Path: abbreviatePath(path), Err: err,
			Detail: "is mounted apart from the workspace, which protects it from changes",
		}
	}
	return newError(path, err)
}

// dirEntry is a name in an open directory. The file may not exist.
type dirEntry struct {
	rel  string
	dir  int
	name string
	// stat is valid if exists is set.
	stat   statResult
	exists bool
}

func (p dirEntry) close() { _ = unix.Close(p.dir) }

// findEntry opens the directory of rel and stats the entry without following it.
// With parents it makes missing directories.
func (w *Writer) findEntry(rel string, parents bool) (dirEntry, error) {
	dir, name := splitPath(rel)
	if name == "" {
		return dirEntry{}, unix.EISDIR
	}
	p := dirEntry{rel: rel, name: name}
	var err error
	if parents {
		p.dir, _, err = w.makeDirs(dir)
	} else {
		p.dir, err = w.tree.openPath(dir, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return dirEntry{}, err
	}
	p.stat, err = statx(p.dir, name, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return p, nil
	case err == nil && p.stat.mount != w.tree.mount:
		err = ErrMount
	}
	if err != nil {
		p.close()
		return dirEntry{}, err
	}
	p.exists = true
	return p, nil
}

func (op Op) checkHash(exists bool, content []byte) error {
	switch {
	case op.IfSHA256 == "":
		return nil
	case op.IfSHA256 == "absent" && exists:
		return op.newError(KindConflict, "exists now; it did not when the change was shown")
	case op.IfSHA256 == "absent":
		return nil
	case !exists:
		return op.newError(KindConflict, "no longer exists; it did when the change was shown")
	}
	if sum := sha256.Sum256(content); !strings.EqualFold(hex.EncodeToString(sum[:]), op.IfSHA256) {
		return op.newError(KindConflict, "has changed since the change was shown; read it again")
	}
	return nil
}

// chmodDirectory sets the mode of a directory. The caller must own it and be able
// to search its path, but needs no permission in it.
func (w *Writer) chmodDirectory(op Op, rel string, c *Change) error {
	if op.Mode&^0o7777 != 0 {
		return op.newError(KindInvalid, "can't be given such a mode")
	}
	if rel == "." { // its own descriptor: "." could not be looked up in it
		return w.tree.withDescriptor(func(fd int) error {
			f, err := statx(fd, "", unix.AT_EMPTY_PATH)
			if err != nil {
				return err
			}
			return setMode(op, f, c, func(mode uint32) error { return unix.Fchmod(fd, mode) })
		})
	}
	p, err := w.findEntry(rel, false)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case !p.exists:
		return unix.ENOENT
	case typeOf(p.stat.Mode) != TypeDir:
		return unix.ENOTDIR
	}
	// Open the directory first: chmod by name would follow a symlink that took its
	// place meanwhile.
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

// chmodHeld sets the mode of a directory opened with O_PATH. It uses a path in
// /proc because fchmod(2) refuses such a descriptor and fchmodat2(2) with
// AT_EMPTY_PATH came with Linux 6.6. Without /proc, the directory's "." works if it
// can be searched.
func chmodHeld(fd int, mode uint32) error {
	err := unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), mode, 0)
	if errors.Is(err, unix.ENOENT) {
		err = unix.Fchmodat(fd, ".", mode, 0)
	}
	return err
}

func setMode(op Op, now statResult, c *Change, set func(mode uint32) error) error {
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

// renameFile moves an entry, possibly a symlink itself, to a new name. It makes
// missing directories in the new path.
func (w *Writer) renameFile(op Op, rel string, c *Change) error {
	to, e := w.prefixes.relativePath(op.To)
	if e != nil {
		return e
	}
	if rel == "." || to == "." {
		return op.newError(KindInvalid, "is the workspace itself, which can't be moved or replaced")
	}
	if to == rel || strings.HasPrefix(to, rel+"/") {
		return op.newError(KindInvalid, "can't be moved into itself")
	}
	from, err := w.findEntry(rel, false)
	if err != nil {
		return err
	}
	defer from.close()
	if !from.exists {
		return unix.ENOENT
	}
	if op.IfSHA256 != "" {
		if _, _, err := from.readApproved(op, MaxWriteBytes); err != nil {
			return err
		}
	}
	dest, err := w.findEntry(to, true)
	if err != nil {
		return writeFault(op.To, err)
	}
	defer dest.close()
	c.To, c.Bytes = to, 0
	if typeOf(from.stat.Mode) == TypeFile {
		c.Bytes = from.stat.Size
	}
	if !dest.exists {
		err = renameAt(from.dir, from.name, dest.dir, dest.name, true)
	}
	if dest.exists || errors.Is(err, unix.EEXIST) {
		return &Error{Kind: KindExists, Path: op.To, Detail: "exists already; delete it first, or choose another name", Err: err}
	}
	return err
}

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

// keepContent records the content of a file to be deleted. An unreadable file is
// deleted all the same, unless its hash has to be compared.
func (p dirEntry) keepContent(op Op, c *Change) error {
	if typeOf(p.stat.Mode) != TypeFile {
		if op.IfSHA256 != "" {
			return op.newError(KindConflict, "is no regular file; it was one when the change was shown")
		}
		return nil
	}
	before, whole, err := p.readApproved(op, MaxWriteBytes)
	if err != nil && op.IfSHA256 != "" {
		return err
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
