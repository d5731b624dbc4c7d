package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// errChanged is an original that changed after it was looked at.
var errChanged = errors.New("changed meanwhile")

// errOwner is a file of another user that only root could replace as theirs.
var errOwner = errors.New("it belongs to another user, and only root could keep it theirs")

// writer makes changes in the original folder. It opens every folder anew,
// through no link, and acts by descriptors and single names in them.
type writer struct {
	upper, lower tree
	owner        *node // the workspace's own folder
	run          string
	// links are files of several names that are in the original as they are in
	// the layer, by their inode there.
	links map[uint64]twin
	// staged are files that are written and not yet in their places; count
	// numbers temporary files.
	staged []stagedFile
	count  int
	// onFailure is told of a change that could not be made; its error ends all.
	onFailure func(*Change, error) error
}

// openParent opens the folder of a path in the original.
func (w *writer) openParent(path string) (dir int, name string, err error) {
	dir, err = w.lower.openAt(parent(path), unix.O_PATH|unix.O_DIRECTORY)
	if isMissing(err) {
		err = errChanged
	}
	return dir, base(path), err
}

// requireUnchanged fails unless the original is still what it was when it was looked at.
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

// removeEntry takes something of the original away; a folder only once it is empty.
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
	c.was = nil // what comes now finds nothing
	return nil
}

// writeEntry brings in what is there now.
func (w *writer) writeEntry(c *Change) error {
	if c.Path == "." || c.Now == workspace.TypeDir && c.Kind == Mode {
		return nil // its mode comes last
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
	case c.Now == workspace.TypeLink:
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
				// A file system without links, or a file that may not get one.
			}
		}
		return w.stageFile(c, dir, name)
	}
	return fmt.Errorf("%w: %s", errTypeChanged, c.Now)
}

// stagedFile is a file that is written and not yet in its place.
type stagedFile struct {
	c          *Change
	dir        int
	name, temp string
	out        *os.File
}

// maxStaged bounds the files that are synced together: each by itself costs a
// commit of the file system's journal, some milliseconds; together they share it.
const maxStaged = 32

// stageFile writes a file beside its place.
func (w *writer) stageFile(c *Change, dir int, name string) error {
	held, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.count++
	s := stagedFile{c: c, dir: held, name: name, temp: tempName(w.run, w.count)}
	if s.out, err = w.copyFile(held, s.temp, c); err != nil {
		return errors.Join(err, ignoreMissing(unix.Unlinkat(held, s.temp, 0)), unix.Close(held))
	}
	w.staged = append(w.staged, s)
	if len(w.staged) >= maxStaged {
		return w.flushStaged()
	}
	return nil
}

// flushStaged syncs what is staged and brings it into its places. What goes wrong with
// one of them is told to failed; an error ends the apply.
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
			if now, err = statAt(s.dir, s.name); err == nil {
				w.links[s.c.now.ino] = twin{s.c.Path, now}
			}
		}
		if err != nil || ends != nil {
			err = errors.Join(err, ignoreMissing(unix.Unlinkat(s.dir, s.temp, 0)))
		}
		unix.Close(s.dir)
		if err != nil && ends == nil {
			ends = w.onFailure(s.c, err)
		}
	}
	return ends
}

// syncDirectories syncs the folders in which names have changed, several at a time:
// each alone costs a commit of the file system's journal.
func (w *writer) syncDirectories(todo []*Change) error {
	folders := map[string]bool{}
	for _, c := range todo {
		folders[parent(c.Path)] = true
		if c.Now == workspace.TypeDir {
			folders[c.Path] = true
		}
	}
	var syncs errgroup.Group
	syncs.SetLimit(maxStaged)
	for dir := range folders {
		syncs.Go(func() error {
			fd, err := w.lower.openDir(dir)
			if err != nil {
				return nil //nolint:nilerr // gone, or shut to its owner: nothing of ours is at stake
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

// dropStaged forgets what is staged, as a kill would.
func (w *writer) dropStaged() {
	for _, s := range w.staged {
		_ = errors.Join(s.out.Close(), unix.Unlinkat(s.dir, s.temp, 0), unix.Close(s.dir))
	}
	w.staged = nil
}

// makeDirectory makes a folder, in place of a file where one was. It is open to its
// owner alone until all is in it.
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

// replaceEntry makes something under a temporary name and renames it.
func (w *writer) replaceEntry(dir int, name string, c *Change, make func(temp string) error) error {
	w.count++
	temp := tempName(w.run, w.count)
	if err := make(temp); err != nil {
		return errors.Join(err, ignoreMissing(unix.Unlinkat(dir, temp, 0)))
	}
	err := w.renameTemp(dir, temp, name, c)
	if err != nil {
		err = errors.Join(err, ignoreMissing(unix.Unlinkat(dir, temp, 0)))
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (w *writer) renameTemp(dir int, temp, name string, c *Change) error {
	if c.was != nil {
		if err := requireUnchanged(dir, name, c.was); err != nil { // writing took a while
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

// makeLink gives a file that was applied already another name.
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

// copyFile writes the file from the upper layer: content with its holes, owner,
// mode and modification time. It is still to be synced.
func (w *writer) copyFile(dir int, temp string, c *Change) (*os.File, error) {
	in, n, err := w.upper.openFile(c.Path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
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
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, timespec(n.mtime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times, 0)
}

// copyData copies what of a file is data, so that a terabyte of nothing stays
// nothing. Its size is what it was when it was opened.
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
		if err != nil { // a file system that can't tell
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

// findOwner say whose the result is. What is changed keeps its owner and group; what
// is new has the owner and group of the workspace, or the group of a folder
// that hands its own down. The upper layer's word counts for neither.
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

// changeOwner gives a new file to its owner. Only root gives away; an ordinary user's
// files are the user's own, and the group is tried.
func changeOwner(fd, uid, gid int) error {
	if os.Geteuid() == 0 {
		return unix.Fchown(fd, uid, gid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Gid) != gid {
		_ = unix.Fchown(fd, -1, gid) // one of the user's groups, or not
	}
	return nil
}

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
	// By /proc, since fchmod(2) takes no O_PATH descriptor, and a file that may
	// not be read can't be opened otherwise. It is no link, so this follows none.
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), uint32(c.Mode))
}

// setDirectoryMode gives a folder its mode; the set-group-ID and sticky bits that the
// folder has stay.
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
