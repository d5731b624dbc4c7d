package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools/workspace"
)

// errChanged is the error for an original that changed after it was examined.
var errChanged = errors.New("changed meanwhile")

// errOwner is the error for a file of another user, which only root can replace
// without changing its owner.
var errOwner = errors.New("it belongs to another user, and only root could keep it theirs")

// writer makes changes in the original directory. It opens every directory anew
// without following symlinks, and acts by descriptors and single names in them.
type writer struct {
	upper stack
	lower tree
	owner *node // the workspace's own directory
	run   string
	// links are files with several names that are the same in the original and
	// in the layer, by their inode in the layer.
	links map[uint64]twin
	// staged are files that were written and not yet renamed. count numbers
	// temporary files.
	staged []stagedFile
	count  int
	// onFailure is called for a change that could not be made. If it returns an
	// error, the apply ends.
	onFailure func(*Change, error) error
}

// openParent opens the directory of a path in the original.
func (w *writer) openParent(path string) (dir int, name string, err error) {
	dir, err = w.lower.openAt(parent(path), unix.O_PATH|unix.O_DIRECTORY)
	if isMissing(err) {
		err = errChanged
	}
	return dir, base(path), err
}

// requireUnchanged returns [errChanged] if the original has changed since it
// was examined.
func requireUnchanged(dir int, name string, was *node) error {
	now, err := statAt(dir, name)
	if isMissing(err) {
		now, err = nil, nil
	}
	if err != nil {
		return err
	}
	if !was.isSame(now) {
		return errChanged
	}
	return nil
}

// removeEntry removes an entry of the original. A directory must be empty.
func (w *writer) removeEntry(c *Change) error {
	dir, name, err := w.openParent(c.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := requireUnchanged(dir, name, c.was); err != nil {
		return err
	}
	flags := 0
	if c.Was == workspace.TypeDir {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(dir, name, flags); err != nil {
		if errors.Is(err, unix.ENOTEMPTY) {
			return errChanged
		}
		return err
	}
	c.was = nil // the next change of this path finds nothing
	return nil
}

// writeEntry creates or replaces an entry of the original.
func (w *writer) writeEntry(c *Change) error {
	if c.Path == "." || c.Now == workspace.TypeDir && c.Kind == Mode {
		return nil // modes of directories are set last
	}
	dir, name, err := w.openParent(c.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := requireUnchanged(dir, name, c.was); err != nil {
		return err
	}
	switch {
	case c.Kind == Mode:
		return w.setFileMode(dir, name, c)
	case c.Now == workspace.TypeDir:
		return w.makeDirectory(dir, name, c)
	case c.Now == workspace.TypeSymlink:
		return w.replaceEntry(dir, name, c, func(temp string) error { return w.makeSymlink(dir, temp, c) })
	case c.Now == workspace.TypeFile:
		if c.now.nlink > 1 {
			if err := w.flushStaged(); err != nil {
				return err
			}
			if first, ok := w.links[c.now.ino]; ok && !isGuarded(first.path) && !isGuarded(c.Path) {
				err := w.replaceEntry(dir, name, c, func(temp string) error { return w.makeLink(dir, temp, first) })
				if err == nil || errors.Is(err, errChanged) {
					return err
				}
				// The file system has no hard links, or the file may not get one.
			}
		}
		return w.stageFile(c, dir, name)
	}
	return fmt.Errorf("%w: %s", errTypeChanged, c.Now)
}

// stagedFile is a file that was written and not yet renamed.
type stagedFile struct {
	c          *Change
	dir        int
	name, temp string
	out        *os.File
}

// maxStaged bounds the files that are synced together. They share one commit of
// the file system's journal, which takes some milliseconds.
const maxStaged = 32

// stageFile writes a file under a temporary name beside its final one.
func (w *writer) stageFile(c *Change, dir int, name string) error {
	held, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.count++
	s := stagedFile{c: c, dir: held, name: name, temp: tempName(w.run, w.count)}
	s.out, err = w.copyFile(held, s.temp, c)
	if err != nil {
		return errors.Join(err, state.IgnoreMissing(unix.Unlinkat(held, s.temp, 0)), unix.Close(held))
	}
	w.staged = append(w.staged, s)
	if len(w.staged) >= maxStaged {
		return w.flushStaged()
	}
	return nil
}

// flushStaged syncs the staged files and renames them. It passes errors to
// onFailure; an error that onFailure returns ends the apply.
func (w *writer) flushStaged() error {
	all := w.staged
	w.staged = nil
	errs := make([]error, len(all))
	var syncs sync.WaitGroup
	for i := range all {
		syncs.Go(func() {
			errs[i] = errors.Join(ignoringEINTR(func() error { return unix.Fsync(int(all[i].out.Fd())) }), all[i].out.Close())
		})
	}
	syncs.Wait()
	var ends error
	for i, s := range all {
		err := errs[i]
		if err == nil && ends == nil {
			err = w.renameTemp(s.dir, s.temp, s.name, s.c)
		}
		if err == nil && ends == nil && s.c.now.nlink > 1 {
			var now *node
			now, err = statAt(s.dir, s.name)
			if err == nil {
				w.links[s.c.now.ino] = twin{s.c.Path, now}
			}
		}
		if err != nil || ends != nil {
			err = errors.Join(err, state.IgnoreMissing(unix.Unlinkat(s.dir, s.temp, 0)))
		}
		unix.Close(s.dir)
		if err != nil && ends == nil {
			ends = w.onFailure(s.c, err)
		}
	}
	return ends
}

// syncDirectories syncs the directories in which names have changed, several at
// a time, so that they share commits of the file system's journal.
func (w *writer) syncDirectories(todo []*Change) error {
	dirs := map[string]bool{}
	for _, c := range todo {
		dirs[parent(c.Path)] = true
		if c.Now == workspace.TypeDir {
			dirs[c.Path] = true
		}
	}
	var syncs errgroup.Group
	syncs.SetLimit(maxStaged)
	for dir := range dirs {
		syncs.Go(func() error {
			fd, err := w.lower.openDir(dir)
			if err != nil {
				return nil // gone, or not accessible to its owner: nothing of ours is lost
			}
			err = ignoringEINTR(func() error { return unix.Fsync(fd) })
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) { // a file system that can't
				err = nil
			}
			return errors.Join(err, unix.Close(fd))
		})
	}
	return syncs.Wait()
}

// dropStaged removes the staged files.
func (w *writer) dropStaged() {
	for _, s := range w.staged {
		_ = errors.Join(s.out.Close(), unix.Unlinkat(s.dir, s.temp, 0), unix.Close(s.dir))
	}
	w.staged = nil
}

// makeDirectory creates a directory, and replaces a file if there is one. Only
// the owner can access it until its content is complete.
func (w *writer) makeDirectory(dir int, name string, c *Change) error {
	if c.was != nil {
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return err
		}
	}
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return errChanged
		}
		return err
	}
	made, err := (tree{dir}).openDir(name)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	uid, gid := w.findOwner(dir, c)
	return changeOwner(made, uid, gid)
}

// replaceEntry creates an entry under a temporary name and renames it.
func (w *writer) replaceEntry(dir int, name string, c *Change, make func(temp string) error) error {
	w.count++
	temp := tempName(w.run, w.count)
	if err := make(temp); err != nil {
		return errors.Join(err, state.IgnoreMissing(unix.Unlinkat(dir, temp, 0)))
	}
	err := w.renameTemp(dir, temp, name, c)
	if err != nil {
		err = errors.Join(err, state.IgnoreMissing(unix.Unlinkat(dir, temp, 0)))
	}
	return err
}

// renameTemp renames a temporary file to its final name, if the original is
// unchanged.
func (w *writer) renameTemp(dir int, temp, name string, c *Change) error {
	if c.was != nil {
		if err := requireUnchanged(dir, name, c.was); err != nil { // writing took time
			return err
		}
		return unix.Renameat(dir, temp, dir, name)
	}
	err := unix.Renameat2(dir, temp, dir, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that can't
		if err := requireUnchanged(dir, name, nil); err != nil {
			return err
		}
		return unix.Renameat(dir, temp, dir, name)
	}
	if errors.Is(err, unix.EEXIST) {
		return errChanged
	}
	return err
}

// makeSymlink creates a symlink under a temporary name.
func (w *writer) makeSymlink(dir int, temp string, c *Change) error {
	if err := unix.Symlinkat(c.Target, dir, temp); err != nil {
		return err
	}
	uid, gid := w.findOwner(dir, c)
	if os.Geteuid() != 0 {
		return nil
	}
	return unix.Fchownat(dir, temp, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
}

// makeLink creates another name of a file that was already applied.
func (w *writer) makeLink(dir int, temp string, first twin) error {
	from, name, err := w.openParent(first.path)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if err := requireUnchanged(from, name, first.was); err != nil {
		return err
	}
	return unix.Linkat(from, name, dir, temp, 0)
}

// copyFile copies the file from the upper layer: content with holes, owner,
// mode and modification time. The caller must sync it.
func (w *writer) copyFile(dir int, temp string, c *Change) (*os.File, error) {
	in, n, err := w.upper.layer(c.now.layer).openFile(c.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	if n.ino != c.now.ino {
		return nil, fmt.Errorf("%w in the layer", errChanged)
	}
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	out := os.NewFile(uintptr(fd), temp)
	if err := w.fillFile(out, in, n, dir, c); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

// fillFile writes the content and metadata of a copy.
func (w *writer) fillFile(out, in *os.File, n *node, dir int, c *Change) error {
	if err := copyData(out, in, n.size); err != nil {
		return err
	}
	fd := int(out.Fd())
	uid, gid := w.findOwner(dir, c)
	if os.Geteuid() != 0 && c.was != nil && int(c.was.uid) != os.Geteuid() {
		return errOwner
	}
	if err := changeOwner(fd, uid, gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, n.mode&permissions); err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(n.mtime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times, 0)
}

// copyData copies the data of a file and keeps its holes. It copies the size
// that the file had when it was opened.
func copyData(out, in *os.File, size int64) error {
	if err := out.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // holes to the end
		}
		to := size
		if err != nil { // the file system does not support it
			from = at
		} else if to, err = unix.Seek(int(in.Fd()), from, unix.SEEK_HOLE); err != nil {
			return err
		}
		to = min(to, size)
		if from >= to {
			return nil
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, from), io.NewSectionReader(in, from, to-from)); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// findOwner returns the owner and group of a result. Changed entries keep
// theirs. New entries get the workspace's, or the group of a parent directory
// with the set-group-ID bit. The owner in the upper layer does not count.
func (w *writer) findOwner(dir int, c *Change) (uid, gid int) {
	if c.base != nil && c.was != nil {
		return int(c.was.uid), int(c.was.gid)
	}
	uid, gid = int(w.owner.uid), int(w.owner.gid)
	if up, err := statAt(dir, ""); err == nil && up.mode&unix.S_ISGID != 0 {
		gid = int(up.gid)
	}
	return uid, gid
}

// changeOwner sets the owner of a new file. Only root can do so. Files of an
// ordinary user stay the user's, and setting the group is attempted.
func changeOwner(fd, uid, gid int) error {
	if os.Geteuid() == 0 {
		return unix.Fchown(fd, uid, gid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Gid) != gid {
		_ = unix.Fchown(fd, -1, gid) // fails unless it is one of the user's groups
	}
	return nil
}

// setFileMode sets the mode of an existing file.
func (w *writer) setFileMode(dir int, name string, c *Change) error {
	if c.Now != workspace.TypeFile {
		return nil
	}
	fd, err := (tree{dir}).openAt(name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := statAt(fd, "")
	if err != nil {
		return err
	}
	if !c.was.isSame(n) {
		return errChanged
	}
	// /proc is used because fchmod(2) does not accept an O_PATH descriptor, and
	// an unreadable file can't be opened otherwise. The entry is not a symlink,
	// so none is followed.
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), uint32(c.Mode))
}

// setDirectoryMode sets the mode of a directory. It keeps its set-group-ID and
// sticky bits.
func (w *writer) setDirectoryMode(c *Change) error {
	fd, err := w.lower.openDir(c.Path)
	if isMissing(err) {
		return errChanged
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := statAt(fd, "")
	if err != nil {
		return err
	}
	return unix.Fchmod(fd, uint32(c.Mode)|n.mode&(unix.S_ISGID|unix.S_ISVTX))
}
