package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// The locks of a store are flock(2) locks on files in its directory locks. The
// kernel releases them with the process that held them, however it ended.
//
//	store      shared: a lock or a temporary directory is being opened
//	           exclusive: entries are being removed; held for moments
//	fetch      shared: an image is being found, fetched or written out
//	           exclusive: unreferenced blobs are being removed
//	KEY.use    shared: a session uses or makes the tree KEY
//	KEY.make   exclusive: the tree KEY is being made
//	tmp/X.lock exclusive: tmp/X belongs to a live process
//
// Lock files are removed only under the exclusive store lock and locked for the
// first time only under the shared one, so that no process holds a lock that
// others can't see. KEY.make alone is awaited without the store lock: at worst
// two processes make the same tree and one rename wins.
const (
	lockStore = "store"
	lockFetch = "fetch"
)

// The intervals at which locks are polled. The store's lock is held for
// moments, a tree's while it is downloaded and unpacked.
const (
	pollStore = 2 * time.Millisecond
	pollMake  = 50 * time.Millisecond
)

// locks are the locks and temporary directories of the store in dir.
type locks struct{ dir string }

func (k locks) lockPath(name string) string { return filepath.Join(k.dir, "locks", name) }

// lock acquires a lock and returns the function that releases it.
func (k locks) lock(ctx context.Context, name string, shared bool, poll time.Duration) (func(), error) {
	l := flock.New(k.lockPath(name))
	take := l.TryLockContext
	if shared {
		take = l.TryRLockContext
	}
	if _, err := take(ctx, poll); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("lock image store: %w", err), l.Close())
	}
	return func() { _ = l.Close() }, nil // the kernel releases the lock in any case
}

// tryLock acquires an exclusive lock if it is free.
func (k locks) tryLock(name string) (release func(), ok bool, err error) {
	l := flock.New(k.lockPath(name))
	ok, err = l.TryLock()
	if err != nil || !ok {
		return nil, false, errors.Join(err, l.Close())
	}
	return func() { _ = l.Close() }, true, nil // as above
}

// acquireLease takes a lease on a tree, which need not exist yet. The tree is
// not removed until release is called.
func (k locks) acquireLease(ctx context.Context, key string) (release func(), err error) {
	unlock, err := k.lock(ctx, lockStore, true, pollStore)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return k.lock(ctx, key+".use", true, pollStore)
}

// isLeased reports whether a session has a lease on a tree. The caller holds
// the exclusive store lock.
func (k locks) isLeased(key string) (bool, error) {
	release, ok, err := k.tryLock(key + ".use")
	if err != nil || !ok {
		return true, err
	}
	release()
	return false, nil
}

// makeTemp creates a directory below tmp, on the store's file system. It
// belongs to this process until remove is called or the process ends.
func (k locks) makeTemp(ctx context.Context) (dir string, remove func() error, err error) {
	unlock, err := k.lock(ctx, lockStore, true, pollStore)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	return k.makeTempLocked()
}

// makeTempLocked is makeTemp for callers that hold the store lock.
func (k locks) makeTempLocked() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp(filepath.Join(k.dir, "tmp"), "")
	if err != nil {
		return "", nil, fmt.Errorf("make temporary directory: %w", err)
	}
	l := flock.New(dir + ".lock")
	if _, err := l.TryLock(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock temporary directory: %w", err), os.Remove(dir), l.Close())
	}
	return dir, func() error {
		return errors.Join(os.RemoveAll(dir), os.Remove(dir+".lock"), l.Close())
	}, nil
}

// sweepOrphans removes the temporary directories of dead processes and returns
// their number and size.
func (k locks) sweepOrphans(ctx context.Context) (count int, bytes int64, err error) {
	unlock, err := k.lock(ctx, lockStore, false, pollStore)
	if err != nil {
		return 0, 0, err
	}
	dead, err := k.lockOrphans()
	unlock()
	errs := []error{err}
	for _, d := range dead {
		bytes += diskSize(d.dir)
		errs = append(errs, os.RemoveAll(d.dir), os.Remove(d.lock.Path()), d.lock.Close())
	}
	return len(dead), bytes, errors.Join(errs...)
}

type orphan struct {
	dir  string
	lock *flock.Flock // held
}

// lockOrphans locks the temporary directories whose process is gone.
func (k locks) lockOrphans() ([]orphan, error) {
	entries, err := os.ReadDir(filepath.Join(k.dir, "tmp"))
	if err != nil {
		return nil, fmt.Errorf("list temporary directories: %w", err)
	}
	seen := map[string]bool{}
	var dead []orphan
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(k.dir, "tmp", strings.TrimSuffix(e.Name(), ".lock"))
		if seen[dir] {
			continue
		}
		seen[dir] = true
		l := flock.New(dir + ".lock")
		switch ok, err := l.TryLock(); {
		case err != nil:
			errs = append(errs, err, l.Close())
		case ok && !pathExists(dir): // its process has just removed it
			errs = append(errs, os.Remove(l.Path()), l.Close())
		case ok:
			dead = append(dead, orphan{dir, l})
		default:
			errs = append(errs, l.Close())
		}
	}
	return dead, errors.Join(errs...)
}

// diskSize adds up the sizes of the files below dir. Unreadable files count as
// 0.
func diskSize(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // errors are skipped
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil
	})
	return bytes
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
