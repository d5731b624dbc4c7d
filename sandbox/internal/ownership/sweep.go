package ownership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// lockFile is locked by the one sweep that a state directory has at a time.
const lockFile = ".sweep.lock"

// SweepOptions configures a [Sweep]. All fields are required.
type SweepOptions struct {
	StateDir string
	// Backend selects the cleanup lists: each backend sweeps its own.
	Backend string
	// Instance is this process's own; see [Instance].
	Instance string
	// RemoveEntry removes a container, volume or cgroup of a dead session and
	// reports whether it existed. The list alone proves nothing, so it must check
	// that the thing belongs to the session.
	RemoveEntry func(ctx context.Context, session string, e Entry) (bool, error)
}

// Sweep removes everything in the cleanup lists of dead owners, and returns
// what existed. It continues after errors and joins them. What it can't remove
// stays in its list for the next sweep. It renames unreadable lists to end in
// ".damaged" and reports them, but never acts on them.
func Sweep(ctx context.Context, o SweepOptions) ([]sandbox.Orphan, error) {
	root, err := openListDir(o.StateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	defer func() { _ = root.Close() }()
	lock, err := state.Acquire(ctx, filepath.Join(o.StateDir, listDir, lockFile), state.Forever)
	if err != nil {
		return nil, fmt.Errorf("sweep: wait for another sweep: %w", err)
	}
	defer func() { _ = lock.Release() }() // the lock ends with the process at the latest

	var left []sandbox.Orphan
	var errs []error
	names, err := listFileNames(root)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	for _, name := range names {
		found, err := o.sweepList(ctx, root, name)
		left = append(left, found...)
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", name, err))
		}
	}
	if err := pruneStrays(o.StateDir, root); err != nil {
		errs = append(errs, fmt.Errorf("sweep: %w", err))
	}
	return left, errors.Join(errs...)
}

// strayTime is how old a lock without a cleanup list must be to be examined:
// far longer than creating a list takes.
const strayTime = time.Hour

// pruneStrays removes the lock and the incomplete cleanup list of a session
// that was killed while it created the list. It had made nothing yet.
func pruneStrays(stateDir string, root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		session, ok := strings.CutSuffix(e.Name(), ".lock")
		session, hidden := strings.CutPrefix(session, ".")
		if !ok || !hidden || !isPlainWord(session) || e.Name() == lockFile || e.Name() == placeholderLock {
			continue
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < strayTime {
			continue
		}
		if _, err := root.Lstat(session + ".json"); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if lock, err := state.TryAcquire(ownerLock(stateDir, session)); err == nil {
			errs = append(errs, state.IgnoreMissing(root.Remove("."+session+".json.new")), removeListFiles(root, session), lock.Release())
		}
	}
	return errors.Join(errs...)
}

// Pending reports whether the backend has a cleanup list, of any owner, for a
// sweep to examine. It returns false if it can't find out.
func Pending(stateDir, backend string) bool {
	docs, _ := ReadLists(stateDir, backend)
	return len(docs) > 0
}

func listFileNames(root *os.Root) ([]string, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (o SweepOptions) sweepList(ctx context.Context, root *os.Root, name string) ([]sandbox.Orphan, error) {
	doc, err := readList(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // its session ended meanwhile
	}
	if errors.Is(err, errOtherVersion) {
		if doc.Backend != o.Backend {
			err = nil // its own backend's sweep reports it
		}
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cleanup list is damaged and was set aside: %w", err), root.Rename(name, name+".damaged"))
	}
	if doc.Backend != o.Backend {
		return nil, nil
	}
	lock, orphaned := o.lockOrphaned(ctx, doc)
	if !orphaned {
		return nil, nil
	}
	defer func() { _ = lock.Release() }() // as above
	j := &CleanupList{root: root, dir: filepath.Join(o.StateDir, listDir), doc: doc}
	for _, r := range doc.Entries {
		j.next = max(j.next, r.ID)
	}
	left, err := o.undoList(ctx, j)
	if err != nil {
		return left, err
	}
	// A directory named after the session is its maker's: it contains records.
	own := path.Base(doc.Dir) != doc.Session && !doc.Abandoned
	if err := tidySessionDir(o.StateDir, doc.Dir, own); err != nil {
		return left, err
	}
	return left, removeListFiles(root, doc.Session)
}

// lockOrphaned reports whether a list's owner is dead, or neither holds its
// lock nor is seen alive: it can't be seen from here, or gave the list up. In
// the second case lockOrphaned returns the lock.
func (o SweepOptions) lockOrphaned(ctx context.Context, doc Document) (*state.Lock, bool) {
	path := ownerLock(o.StateDir, doc.Session)
	switch fate := doc.Owner.Fate(o.Instance); {
	case fate == Unknown || doc.Abandoned:
		lock, err := state.TryAcquire(path)
		return lock, err == nil
	case fate == Dead:
		// A child that the owner forked keeps the lock until it executes its
		// program, such as the runtime. Until then nothing shows whose child it
		// is, and it would begin its work after the sweep.
		if lock, err := state.Acquire(ctx, path, childTime); err == nil {
			_ = lock.Release() // nothing depends on it: the owner is dead
		}
		return nil, true
	}
	return nil, false
}

// childTime bounds the wait for a dead owner's children. It is long for the
// time between fork and exec, even on a busy machine.
const childTime = 2 * time.Second

// undoList removes everything in one cleanup list. After an error it touches no
// later kind: it must not remove a directory with a mount left in it.
func (o SweepOptions) undoList(ctx context.Context, j *CleanupList) ([]sandbox.Orphan, error) {
	base, err := openSessionDir(o.StateDir, j.doc.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if base != nil {
		defer func() { _ = base.Close() }()
	}
	var left []sandbox.Orphan
	for _, kind := range undoOrder {
		var errs []error
		for _, r := range slices.Backward(slices.Clone(j.doc.Entries)) {
			if r.Kind != kind {
				continue
			}
			was, err := o.undoEntry(ctx, j.root, base, j.doc.Session, r.Entry)
			if was {
				left = append(left, sandbox.Orphan{
					Kind: string(r.Kind), Name: r.String(), Session: j.doc.Session, Owner: j.doc.Owner.String(),
				})
			}
			if err == nil {
				err = j.Forget(r.ID)
			}
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			return left, err
		}
	}
	return left, nil
}

// undoEntry removes an entry's thing and reports whether it existed.
func (o SweepOptions) undoEntry(ctx context.Context, root *os.Root, base *os.File, session string, e Entry) (bool, error) {
	switch e.Kind {
	case KindMount, KindDirectory:
		if base == nil {
			return false, nil // the session's directory is gone, with everything in it
		}
		was := existsBelow(base, e.Path)
		if e.Kind == KindMount {
			return was, state.IgnoreMissing(Unmount(base, e.Path))
		}
		return was, state.IgnoreMissing(workspace.RemoveTreeAt(base, e.Path))
	case KindPlaceholder:
		return o.undoPlaceholder(ctx, root, session, *e.Placeholder)
	default:
		return o.RemoveEntry(ctx, session, e)
	}
}

func (o SweepOptions) undoPlaceholder(ctx context.Context, root *os.Root, session string, p Placeholder) (bool, error) {
	lock, err := lockPlaceholders(ctx, filepath.Join(o.StateDir, listDir))
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Release() }() // as above
	shared, err := isShared(root, session, p)
	if shared || err != nil {
		return false, err
	}
	err = p.removeByPath()
	if errors.Is(err, ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		return false, nil // the user's now, or gone
	}
	return err == nil, err
}

// readListFile reads a whole regular file of the directory, up to maxListSize.
func readListFile(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxListSize {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxListSize)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxListSize))
}

// tidySessionDir removes the socket on which the session's owner accepted
// commands, which is in no list. If removeDir is set, it also removes the
// session's directory, unless it isn't empty.
func tidySessionDir(stateDir, dir string, removeDir bool) error {
	base, err := openSessionDir(stateDir, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { _ = base.Close() }()
	if err := removeSocket(int(base.Fd())); err != nil || !removeDir {
		return err
	}
	parent, err := openSessionDir(stateDir, path.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	err = unix.Unlinkat(int(parent.Fd()), path.Base(dir), unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove directory %s: %w", dir, err)
	}
	return nil
}

func removeSocket(base int) error {
	var st unix.Stat_t
	err := unix.Fstatat(base, sandbox.ExecSocket, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(base, sandbox.ExecSocket, 0)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", sandbox.ExecSocket, err)
	}
	return nil
}

// Unmount removes a mount below base, and the empty file or directory that it
// was on. No part of the path may be a symlink. It ignores a missing mount.
func Unmount(base *os.File, name string) error {
	parent, err := openBeneath(int(base.Fd()), path.Dir(name))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", name, err)
	}
	defer unix.Close(parent)
	target := fmt.Sprintf("/proc/self/fd/%d/%s", parent, path.Base(name))
	for {
		// MNT_DETACH: a starting container may hold it for a moment.
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			break // nothing is mounted; a mount that may not be removed makes unlinkat fail with EBUSY
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", name, err)
		}
	}
	err = unix.Unlinkat(parent, path.Base(name), unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTDIR) {
		err = removeEmptyFile(parent, path.Base(name))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove mount point %s: %w", name, err)
	}
	return nil
}

// removeEmptyFile removes a bound file's mount point and nothing else.
func removeEmptyFile(parent int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return fmt.Errorf("is not an empty file")
	}
	return unix.Unlinkat(parent, name, 0)
}

// openSessionDir opens a session's directory without following symlinks below
// the state directory.
func openSessionDir(stateDir, dir string) (*os.File, error) {
	state, err := os.Open(stateDir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	fd, err := openBeneath(int(state.Fd()), dir)
	if err != nil {
		return nil, &os.PathError{Op: "open session directory", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

func existsBelow(base *os.File, name string) bool {
	fd, err := unix.Openat2(int(base.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: beneath &^ unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return !errors.Is(err, unix.ENOENT)
	}
	unix.Close(fd)
	return true
}
