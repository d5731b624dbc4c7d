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

// ErrHeld is the error for a lock that another process, or another [Lock] of this one,
// holds.
var ErrHeld = errors.New("another process holds it")

// Forever waits for a lock until the context ends.
const Forever time.Duration = math.MaxInt64

// ReleaseTime bounds how long a killed process's lock can seem held: a program that the
// process was starting has copies of its descriptors until exec.
const ReleaseTime = 2 * time.Second

// Lock is an exclusive or shared lock on a file. The kernel releases it when the
// process ends, even after a crash. Lock a separate file, not the data: [Replace] would
// put another file in place of the locked one.
type Lock struct{ file *flock.Flock }

// Acquire takes the exclusive lock on a file, which it makes if necessary. If others
// still hold the lock after wait, the error wraps [ErrHeld]; if ctx ends, it wraps the
// cause. If wait is positive, Acquire also makes the file's directory.
func Acquire(ctx context.Context, path string, wait time.Duration) (*Lock, error) {
	return acquire(ctx, path, wait, (*flock.Flock).TryLock)
}

// AcquireShared is [Acquire] for a shared lock.
func AcquireShared(ctx context.Context, path string, wait time.Duration) (*Lock, error) {
	return acquire(ctx, path, wait, (*flock.Flock).TryRLock)
}

// TryAcquire is [Acquire] without waiting.
func TryAcquire(path string) (*Lock, error) { return Acquire(context.Background(), path, 0) }

// The pauses between attempts. Most locks are held for a millisecond.
const (
	firstPause = time.Millisecond
	lastPause  = 16 * time.Millisecond
)

// maxGone bounds how often the lock file may be removed between opening and locking
// before that counts as a failed attempt.
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
			_ = file.Close() // the holder has removed the file
			gone++
			if gone < maxGone {
				continue // nobody holds it, so even a caller that doesn't wait can have it
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		}
	}
}

// isCurrent reports whether the locked file still has its name.
func isCurrent(file *flock.Flock) bool {
	locked, err := file.Stat()
	named, nameErr := os.Stat(file.Path())
	return err == nil && nameErr == nil && os.SameFile(locked, named)
}

// Path returns the file's path.
func (l *Lock) Path() string { return l.file.Path() }

// Release releases the lock and leaves the file. It does nothing if l is nil or already
// released.
func (l *Lock) Release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// Remove removes the file, which may be missing, then releases the lock. Waiting
// processes make the file again.
func (l *Lock) Remove() error {
	return errors.Join(IgnoreMissing(os.Remove(l.Path())), l.Release())
}

// IsHeld reports whether a lock is held, shared or not. It doesn't make the file.
// Concurrent calls may see each other.
func IsHeld(path string) (bool, error) {
	file := flock.New(path, flock.SetFlag(os.O_RDWR))
	free, err := file.TryLock()
	if err != nil {
		return false, IgnoreMissing(err)
	}
	return !free, file.Close()
}
