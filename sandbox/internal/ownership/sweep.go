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

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/sandbox"
)

// lockFile keeps two sweeps of one state folder apart.
const lockFile = ".sweep.lock"

// SweepOptions says which cleanup lists to undo, and how. All fields are required.
type SweepOptions struct {
	StateDir string
	// Backend selects the cleanup lists: each backend sweeps its own.
	Backend string
	// Instance is this process's own; see [Instance].
	Instance string
	// Undo removes one container, process or cgroup of a dead session. It
	// must check that the thing is the session's: the cleanup list alone proves
	// nothing. It reports whether there was anything to remove.
	RemoveEntry func(ctx context.Context, session string, e Entry) (bool, error)
}

// Sweep undoes the cleanup lists of sessions whose owner is dead and returns what
// was there to remove. It goes on after an error and joins them; what could
// not be removed stays noted for the next sweep. A cleanup list that can't be read
// is renamed to end in ".damaged" and reported, never acted on.
func Sweep(ctx context.Context, o SweepOptions) ([]sandbox.Orphan, error) {
	root, err := openListDir(o.StateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	defer root.Close()
	lock := flock.New(filepath.Join(o.StateDir, listDir, lockFile))
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		return nil, fmt.Errorf("sweep: wait for another sweep: %w", err)
	}
	defer lock.Close()

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

// strayTime is how old a lock without a cleanup list must be to be looked at: far
// longer than it takes to begin one.
const strayTime = time.Hour

// pruneStrays removes the lock, and the half written cleanup list, of a session that
// was killed while it began: it had made nothing yet.
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
		lock := ownerLock(stateDir, session)
		if locked, err := lock.TryLock(); err == nil && locked {
			errs = append(errs, ignoreMissing(root.Remove("."+session+".json.new")), removeListFiles(root, session))
		}
		lock.Close() //nolint:errcheck // it ends with the process at the latest
	}
	return errors.Join(errs...)
}

// Pending says whether a sweep of the backend has anything to look at: a
// cleanup list of a session of any owner. It changes nothing, and says false where
// it can't tell.
func Pending(stateDir, backend string) bool {
	root, err := openListDir(stateDir, false)
	if err != nil {
		return false
	}
	defer root.Close()
	names, err := listFileNames(root)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(names, func(name string) bool {
		data, err := readListFile(root, name)
		if err != nil {
			return false
		}
		doc, err := parseList(name, data)
		return err == nil && doc.Backend == backend
	})
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
	data, err := readListFile(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // its session ended meanwhile
	}
	var doc document
	if err == nil {
		doc, err = parseList(name, data)
	}
	if errors.Is(err, errOtherVersion) {
		if doc.Backend != o.Backend {
			err = nil // its own backend's sweep says so
		}
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cleanup list is damaged and was set aside: %w", err), root.Rename(name, name+".damaged"))
	}
	if doc.Backend != o.Backend {
		return nil, nil
	}
	lock := ownerLock(o.StateDir, doc.Session)
	defer lock.Close()
	if !o.isOrphaned(doc, lock) {
		return nil, nil
	}
	j := &CleanupList{root: root, lock: lock, doc: doc}
	for _, r := range doc.Entries {
		j.next = max(j.next, r.ID)
	}
	left, err := o.undoList(ctx, j)
	if err != nil {
		return left, err
	}
	// The folder called after the session is its maker's: records are in it.
	own := path.Base(doc.Dir) != doc.Session && !doc.Abandoned
	if err := tidySessionDir(o.StateDir, doc.Dir, own); err != nil {
		return left, err
	}
	return left, removeListFiles(root, doc.Session)
}

// abandoned says that the cleanup list's owner is dead, or gave it up: its process
// is known to be gone, or it can't be seen from here or said so itself, and no
// longer holds its lock.
func (o SweepOptions) isOrphaned(doc document, lock *flock.Flock) bool {
	fate := doc.Owner.Fate(o.Instance)
	if fate == Unknown || doc.Abandoned {
		locked, err := lock.TryLock()
		return err == nil && locked
	}
	return fate == Dead
}

// undo undoes one cleanup list. After an error nothing of a later kind is touched:
// a folder is not removed while a mount may be left in it.
func (o SweepOptions) undoList(ctx context.Context, j *CleanupList) ([]sandbox.Orphan, error) {
	base, err := openSessionDir(o.StateDir, j.doc.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if base != nil {
		defer base.Close()
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

// undoEntry reports whether there was anything, and removes it.
func (o SweepOptions) undoEntry(ctx context.Context, root *os.Root, base *os.File, session string, e Entry) (bool, error) {
	switch e.Kind {
	case KindMount, KindDirectory:
		if base == nil {
			return false, nil // the session's folder is gone, with all in it
		}
		was := existsBelow(base, e.Path)
		if e.Kind == KindMount {
			return was, ignoreMissing(Unmount(base, e.Path))
		}
		return was, ignoreMissing(RemoveTree(base, e.Path))
	case KindPlaceholder:
		return o.undoPlaceholder(ctx, root, session, *e.Placeholder)
	default:
		return o.RemoveEntry(ctx, session, e)
	}
}

// undoPlaceholder removes a placeholder that no other session shares.
func (o SweepOptions) undoPlaceholder(ctx context.Context, root *os.Root, session string, p Placeholder) (bool, error) {
	unlock, err := lockPlaceholders(ctx, filepath.Join(o.StateDir, listDir))
	if err != nil {
		return false, err
	}
	defer unlock()
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

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// readJournal reads a regular file of the folder, whole, within a bound.
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
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxListSize))
}
