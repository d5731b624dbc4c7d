package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
)

// A store's locks are flock(2) locks on files in its directory locks. The
// kernel releases them when their process ends.
//
//	store      shared: a lock or a temporary directory is being opened
//	           exclusive: entries are being removed; held for moments
//	fetch      shared: an image is being found, fetched or written out
//	           exclusive: unreferenced blobs are being removed
//	KEY.use    shared: a session uses or makes the tree KEY
//	KEY.make   exclusive: the tree KEY is being made
//	tmp/X.lock exclusive: tmp/X belongs to a live process
//
// Lock files are removed only under the exclusive store lock and first locked
// only under the shared one, so that no process holds a lock that others can't
// see. Only KEY.make is awaited without the store lock: [state.Acquire] notices
// if its file is removed.
const (
	lockStore = "store"
	lockFetch = "fetch"
)

type locks struct{ dir string }

func (k locks) lockPath(name string) string { return filepath.Join(k.dir, "locks", name) }

func (k locks) lock(ctx context.Context, name string, shared bool) (func(), error) {
	acquire := state.Acquire
	if shared {
		acquire = state.AcquireShared
	}
	l, err := acquire(ctx, k.lockPath(name), state.Forever)
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	return func() { _ = l.Release() }, nil // the kernel releases it in any case
}

// acquireLease takes a lease on a tree, which need not exist yet. The tree
// stays until release is called.
func (k locks) acquireLease(ctx context.Context, key string) (release func(), err error) {
	unlock, err := k.lock(ctx, lockStore, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return k.lock(ctx, key+".use", true)
}

// isLeased reports whether a session has a lease on a tree. The caller holds
// the exclusive store lock.
func (k locks) isLeased(key string) (bool, error) { return state.IsHeld(k.lockPath(key + ".use")) }

// makeTemp creates a directory below tmp, on the store's file system. It is
// this process's until remove is called or the process ends.
func (k locks) makeTemp(ctx context.Context) (dir string, remove func() error, err error) {
	unlock, err := k.lock(ctx, lockStore, true)
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
	l, err := state.TryAcquire(dir + ".lock")
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock temporary directory: %w", err), os.Remove(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), l.Remove()) }, nil
}

// sweepOrphans removes dead processes' temporary directories and returns their
// number and size.
func (k locks) sweepOrphans(ctx context.Context) (count int, bytes int64, err error) {
	unlock, err := k.lock(ctx, lockStore, false)
	if err != nil {
		return 0, 0, err
	}
	dead, err := k.lockOrphans()
	unlock()
	errs := []error{err}
	for _, d := range dead {
		bytes += diskSize(d.dir)
		errs = append(errs, os.RemoveAll(d.dir), d.lock.Remove())
	}
	return len(dead), bytes, errors.Join(errs...)
}

type orphan struct {
	dir  string
	lock *state.Lock
}

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
		l, err := state.TryAcquire(dir + ".lock")
		switch {
		case errors.Is(err, state.ErrHeld):
		case err != nil:
			errs = append(errs, err)
		case !pathExists(dir): // just removed by its process
			errs = append(errs, l.Remove())
		default:
			dead = append(dead, orphan{dir, l})
		}
	}
	return dead, errors.Join(errs...)
}

func diskSize(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // skip errors
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
