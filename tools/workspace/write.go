package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Modes of what a Writer makes. A replaced file keeps its permission bits, but no
// set-user-ID, set-group-ID or sticky bit.
const (
	newFileMode = 0o644
	newDirMode  = 0o755
	permissions = 0o777
)

const maxParents = 256

func (w *Writer) writeFile(ctx context.Context, op Op, rel string, c *Change) error {
	if len(op.Content) > MaxWriteBytes {
		return op.newError(KindTooLarge, fmt.Sprintf("the content has %d bytes; at most %d can be written", len(op.Content), MaxWriteBytes))
	}
	p, err := w.findEntry(rel, true)
	if err != nil {
		return err
	}
	defer p.close()
	most := int64(MaxPreimageBytes)
	if op.IfSHA256 != "" || op.Kind == OpAppend {
		most = MaxWriteBytes
	}
	before, whole, err := p.readApproved(op, most)
	if err != nil {
		return err
	}
	content := op.Content
	if op.Kind == OpAppend {
		if p.exists && !whole || len(before)+len(content) > MaxWriteBytes {
			return op.newError(KindTooLarge, fmt.Sprintf("has %d bytes; with %d more it would be above the %d that can be appended to", p.stat.Size, len(content), MaxWriteBytes))
		}
		content = slices.Concat(before, content)
	}
	c.recordBefore(p, before, whole)
	return p.replaceContent(ctx, op, content, c)
}

func (w *Writer) patchFile(ctx context.Context, op Op, rel string, c *Change) error {
	p, err := w.findEntry(rel, false)
	if err != nil {
		return err
	}
	defer p.close()
	if !p.exists {
		return unix.ENOENT
	}
	before, whole, err := p.readContent(MaxWriteBytes)
	if err != nil {
		return err
	}
	if !whole {
		return op.newError(KindTooLarge, fmt.Sprintf("has %d bytes; files of at most %d can be patched", p.stat.Size, MaxWriteBytes))
	}
	if err := op.checkHash(true, before); err != nil {
		return err
	}
	after, n, err := op.PatchContent(before)
	if err != nil {
		return err
	}
	c.Replacements = n
	c.recordBefore(p, before, whole)
	return p.replaceContent(ctx, op, after, c)
}

func (c *Change) recordBefore(p dirEntry, before []byte, whole bool) {
	c.Created = !p.exists
	if p.exists && whole && len(before) <= MaxPreimageBytes {
		c.Before, c.HasBefore = before, true
	}
}

// readApproved is readContent for a change that was approved for the content with
// op.IfSHA256, if any. Another content is an error.
func (p dirEntry) readApproved(op Op, most int64) (data []byte, whole bool, err error) {
	data, whole, err = p.readContent(most)
	if err != nil || op.IfSHA256 == "" {
		return data, whole, err
	}
	if p.exists && !whole {
		return nil, false, op.newError(KindTooLarge, "the file is too large to be compared with what was shown")
	}
	return data, whole, op.checkHash(p.exists, data)
}

// readContent reads the file to be replaced. whole is false if it is larger than
// most. The file is opened for writing too, so that the rename doesn't bypass a
// mode or owner that forbids writing.
func (p dirEntry) readContent(most int64) (data []byte, whole bool, err error) {
	if !p.exists {
		return nil, false, nil
	}
	switch typeOf(p.stat.Mode) {
	case TypeFile:
	case TypeDir:
		return nil, false, unix.EISDIR
	case TypeSymlink:
		return nil, false, &Error{Kind: KindNotRegular, Path: p.rel, Detail: "is a symlink; change the file that it leads to by its own path, or delete the symlink first"}
	default:
		return nil, false, errNotRegular
	}
	const flags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := openat(p.dir, p.name, unix.O_RDWR|flags)
	if errors.Is(err, unix.ETXTBSY) { // a running program may be replaced
		fd, err = openat(p.dir, p.name, unix.O_RDONLY|flags)
	}
	n, info, err := asRegular(fd, err)
	if err != nil {
		return nil, false, err
	}
	defer n.close()
	if info.Size > most {
		return nil, false, nil
	}
	data = make([]byte, info.Size+1) // one more, to see that it did not grow
	for got := 0; ; {
		m, err := n.readAt(data[got:], int64(got))
		if err != nil {
			return nil, false, err
		}
		got += m
		if m == 0 || got == len(data) {
			return data[:got], got < len(data), nil
		}
	}
}

// replaceContent writes content to a temporary file and renames it to the entry's
// name.
func (p dirEntry) replaceContent(ctx context.Context, op Op, content []byte, c *Change) (err error) {
	mustBeNew := op.IfSHA256 == "absent"
	temp := ".caisson-" + rand.Text() + ".tmp"
	fd := -1
	err = retry(func() (err error) {
		fd, err = unix.Openat(p.dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(p.dir, temp, 0)
		}
	}()
	err = p.fillTemp(fd, content)
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if err = renameAt(p.dir, temp, p.dir, p.name, mustBeNew); err != nil {
		if mustBeNew && errors.Is(err, unix.EEXIST) {
			return &Error{Kind: KindConflict, Path: p.rel, Detail: "exists now; it did not when the change was shown", Err: err}
		}
		return err
	}
	c.Bytes = int64(len(content))
	return nil
}

func (p dirEntry) fillTemp(fd int, content []byte) error {
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		content = content[max(n, 0):]
	}
	mode := uint32(newFileMode)
	if p.exists {
		mode = p.stat.Mode & permissions
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	err := retry(func() error { return unix.Fsync(fd) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) { // the file system can't sync
		return nil
	}
	return err
}

func renameAt(fromDir int, from string, toDir int, to string, mustBeNew bool) error {
	if !mustBeNew {
		return retry(func() error { return unix.Renameat(fromDir, from, toDir, to) })
	}
	err := retry(func() error { return unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE) })
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	// The file system lacks RENAME_NOREPLACE: check first.
	if _, err := statx(toDir, to, 0); !errors.Is(err, unix.ENOENT) {
		return errors.Join(unix.EEXIST, err)
	}
	return retry(func() error { return unix.Renameat(fromDir, from, toDir, to) })
}

// makeDirs opens the directory rel and makes what is missing. It opens each
// directory from the top again, so that the kernel resolves symlinks on the way.
func (w *Writer) makeDirs(rel string) (dir int, created bool, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	dir, err = w.tree.openPath(rel, flags)
	if !errors.Is(err, unix.ENOENT) {
		return dir, false, err
	}
	names := strings.Split(rel, "/")
	if len(names) > maxParents {
		return -1, false, unix.ENAMETOOLONG
	}
	dir, err = w.tree.openPath(".", flags)
	for i := range names {
		if err != nil {
			return -1, created, err
		}
		next, openErr := w.tree.openPath(strings.Join(names[:i+1], "/"), flags)
		if errors.Is(openErr, unix.ENOENT) {
			err = makeDir(dir, names[i])
			created = created || err == nil
			if err == nil || errors.Is(err, unix.EEXIST) {
				next, openErr = w.tree.openPath(strings.Join(names[:i+1], "/"), flags)
			} else {
				openErr = err
			}
		}
		_ = unix.Close(dir)
		dir, err = next, openErr
	}
	return dir, created, err
}

// makeDir makes a directory with newDirMode, whatever the umask. It keeps an
// inherited set-group-ID bit, which only passes the group on.
func makeDir(dir int, name string) error {
	if err := retry(func() error { return unix.Mkdirat(dir, name, newDirMode) }); err != nil {
		return err
	}
	fd, err := openDirAt(dir, name)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&permissions == newDirMode {
		return err
	}
	return unix.Fchmod(fd, newDirMode|st.Mode&unix.S_ISGID)
}
