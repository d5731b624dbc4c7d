package state

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// ErrHeld is the error for a lock that somebody else holds: another process, or another
// [Lock] of this one.
var ErrHeld = errors.New("another process holds it")

// Forever is a wait for a lock that only the end of the context ends.
const Forever time.Duration = math.MaxInt64

// ReleaseTime bounds how long the lock of a killed process seems to be held: a program that
// the process was starting has copies of its descriptors until it is executed.
const ReleaseTime = 2 * time.Second

// Lock is a lock on a file, held by one process at a time or shared. The kernel releases it when the
// process ends, even after a crash. Lock a file of its own and not the data: [Replace] puts
// another file in place of the locked one.
type Lock struct{ file *flock.Flock }

// Acquire takes the exclusive lock on a file, which it makes if it is missing, and waits while
// others hold the lock. If they still hold it after wait, the error wraps [ErrHeld]; if ctx
// ends, it wraps the cause. With a wait, Acquire also makes the file's directory.
func Acquire(ctx context.Context, path string, wait time.Duration) (*Lock, error) {
	return acquire(ctx, path, wait, (*flock.Flock).TryLock)
}

// AcquireShared is [Acquire] for a lock that others can share.
func AcquireShared(ctx context.Context, path string, wait time.Duration) (*Lock, error) {
	return acquire(ctx, path, wait, (*flock.Flock).TryRLock)
}

// TryAcquire is [Acquire] without a wait. It makes no directory.
func TryAcquire(path string) (*Lock, error) { return Acquire(context.Background(), path, 0) }

// The pauses between two tries. Most locks are held for a millisecond.
const (
	firstPause = time.Millisecond
	lastPause  = 16 * time.Millisecond
)

// maxGone is how often a lock file may be removed between its opening and its locking before a
// try counts as one that failed.
const maxGone = 100

func acquire(ctx context.Context, path string, wait time.Duration, try func(*flock.Flock) (bool, error)) (*Lock, error) {
	if wait > 0 {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
	}
	file := flock.New(path)
	ctx, cancel := context.WithTimeoutCause(ctx, wait, ErrHeld)
	defer cancel()
	gone := 0
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		ok, err := try(file)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if ok && isCurrent(file) {
			return &Lock{file}, nil
		}
		if ok {
			_ = file.Close() // its holder has removed the file meanwhile
			if gone++; gone < maxGone {
				continue // nobody holds it: even a caller that doesn't wait can have it
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		}
	}
}

// isCurrent reports whether the file that is locked is still the one with its name.
func isCurrent(file *flock.Flock) bool {
	locked, err := file.Stat()
	named, nameErr := os.Stat(file.Path())
	return err == nil && nameErr == nil && os.SameFile(locked, named)
}

// Path returns the file's path.
func (l *Lock) Path() string { return l.file.Path() }

// Release releases the lock and leaves the file. For a nil Lock and a second time it does
// nothing.
func (l *Lock) Release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// Remove removes the file, then releases the lock. Whoever waits for it makes the file anew.
// A missing file is not an error.
func (l *Lock) Remove() error {
	return errors.Join(IgnoreMissing(os.Remove(l.Path())), l.Release())
}

// IsHeld reports whether a lock is held, shared or not. It does not make the file. Two
// calls at once may see each other.
func IsHeld(path string) (bool, error) {
	file := flock.New(path, flock.SetFlag(os.O_RDWR))
	free, err := file.TryLock()
	if err != nil {
		return false, IgnoreMissing(err)
	}
	return !free, file.Close()
}
