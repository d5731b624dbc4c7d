package workspace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory with everything in it, whatever commands made: any
// depth, any number of entries, directories that their owner can't enter. It never
// follows a symlink or enters a mount: at a mount it stops with EXDEV or EBUSY,
// because it may be the user's workspace. A missing directory is not an error.
func RemoveTree(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = errors.Join(RemoveTreeAt(parent, filepath.Base(path)), parent.Close())
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// RemoveTreeAt is [RemoveTree] for a path below base, without symlinks.
func RemoveTreeAt(base *os.File, name string) error {
	parent, err := openat2(int(base.Fd()), filepath.Dir(name), unix.O_PATH|unix.O_DIRECTORY, inDir)
	if err != nil {
		return fmt.Errorf("remove directory %s: %w", name, err)
	}
	defer unix.Close(parent)
	last := filepath.Base(name)
	err = unix.Unlinkat(parent, last, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		r := removal{parent: parent, path: name, open: openToRemove, most: math.MaxInt}
		err = r.removeTree(context.Background(), last)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove directory %s: %w", name, err)
	}
	return nil
}

// openToRemove opens a directory on the parent's mount for reading. It first makes
// it accessible if it is this user's.
func openToRemove(parent int, name string) (int, statResult, error) {
	at, err := openat2(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, inDir)
	if err != nil {
		return -1, statResult{}, err
	}
	f, err := statx(at, "", unix.AT_EMPTY_PATH)
	if err == nil && int(f.Uid) == os.Geteuid() && f.Mode&0o700 != 0o700 {
		err = chmodHeld(at, 0o700)
	}
	if err != nil {
		_ = unix.Close(at)
		return -1, f, err
	}
	fd, err := openForReading(at)
	return fd, f, err
}

// keptBatches is how many directories above the current one keep their unremoved
// names in memory. Commands choose the depth and the number of names.
const keptBatches = 64

// removal is one recursive removal. It holds one directory open at a time. It goes
// back up by "..", which must then be the very directory that it came from. So
// depth costs no descriptors, and no path is ever built.
type removal struct {
	parent int    // of the directory that holds the tree
	path   string // of the tree
	// open opens a directory for reading if it is on the tree's mount.
	open          func(parent int, name string) (int, statResult, error)
	most          int // bounds seen
	seen, removed int
	frames        []frame
	dir           int
	// left are names read in dir at offset at and not removed yet.
	left []dirName
	at   int64
}

// frame is a directory on the way down, with its unremoved names and the offset at
// which to read on.
type frame struct {
	name     string
	dev, ino uint64
	left     []dirName
	at       int64
}

func (r *removal) removeTree(ctx context.Context, name string) (err error) {
	if r.dir, err = r.reopenParent(); err != nil {
		return err
	}
	defer func() { _ = unix.Close(r.dir) }()
	if err := r.enterDirectory(name); err != nil {
		return err
	}
	for len(r.frames) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.removeNext(ctx); err != nil {
			return err
		}
	}
	return nil
}

// removeNext removes or enters one entry of the current directory. After the last
// one it removes the directory itself.
func (r *removal) removeNext(ctx context.Context) error {
	if len(r.left) == 0 {
		names, err := r.readNames(ctx)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return r.leaveDirectory()
		}
		r.left = names
	}
	e := r.left[0]
	r.left = r.left[1:]
	var err error = unix.EISDIR
	if e.typ != TypeDir {
		err = r.unlinkEntry(e.name, 0)
	}
	if errors.Is(err, unix.EISDIR) {
		err = r.unlinkEntry(e.name, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOTDIR) { // replaced since its name was read
		err = r.unlinkEntry(e.name, 0)
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		err = r.enterDirectory(e.name)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", e.name, err)
	}
	return nil
}

func (r *removal) unlinkEntry(name string, flags int) error {
	err := retry(func() error { return unix.Unlinkat(r.dir, name, flags) })
	switch {
	case err == nil:
		r.removed++
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return err
}

// readNames reads the current directory's next names. It goes back to the start
// only at the end, because ext4 scans the blocks of removed names again.
func (r *removal) readNames(ctx context.Context) ([]dirName, error) {
	names, err := r.nextNames(ctx)
	if err == nil && len(names) == 0 {
		// Commands may have added names, and some file systems skip names after removals.
		if _, err = unix.Seek(r.dir, 0, unix.SEEK_SET); err == nil {
			names, err = r.nextNames(ctx)
		}
	}
	if r.seen += len(names); r.seen > r.most {
		return nil, &Error{
			Kind: KindTooLarge, Path: abbreviatePath(r.path),
			Detail: fmt.Sprintf("holds more than %d entries; %d were deleted", r.most, r.removed),
		}
	}
	if errors.Is(err, unix.ENOENT) { // the directory was removed meanwhile
		return nil, nil
	}
	return names, err
}

func (r *removal) nextNames(ctx context.Context) (names []dirName, err error) {
	if r.at, err = unix.Seek(r.dir, 0, unix.SEEK_CUR); err != nil {
		return nil, err
	}
	return nextNames(ctx, r.dir, make([]byte, batchBytes), nil)
}

func (r *removal) enterDirectory(name string) error {
	fd, f, err := r.open(r.dir, name)
	if err != nil {
		return err
	}
	if n := len(r.frames); n > keptBatches {
		r.frames[n-1].at = r.at
		r.seen -= len(r.left) // they are read again
	} else if n > 0 {
		above := &r.frames[n-1]
		above.left = r.left
		if above.at, err = unix.Seek(r.dir, 0, unix.SEEK_CUR); err != nil {
			_ = unix.Close(fd)
			return err
		}
	}
	_ = unix.Close(r.dir)
	r.dir, r.left = fd, nil
	r.frames = append(r.frames, frame{name: name, dev: f.Dev, ino: f.Ino})
	return nil
}

func (r *removal) leaveDirectory() error {
	last := r.frames[len(r.frames)-1]
	r.frames = r.frames[:len(r.frames)-1]
	up, err := r.openParent()
	if err != nil {
		return err
	}
	_ = unix.Close(r.dir)
	r.dir = up
	if n := len(r.frames); n > 0 {
		r.left, r.frames[n-1].left = r.frames[n-1].left, nil
	}
	return r.unlinkEntry(last.name, unix.AT_REMOVEDIR)
}

func (r *removal) openParent() (int, error) {
	if len(r.frames) == 0 {
		return r.reopenParent()
	}
	want := r.frames[len(r.frames)-1]
	fd, err := openat(r.dir, "..", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && (f.Dev != want.dev || f.Ino != want.ino) {
		err = &Error{
			Kind: KindConflict, Path: abbreviatePath(r.path),
			Detail: fmt.Sprintf("was moved while it was being deleted; %d entries were deleted", r.removed),
		}
	}
	if err == nil {
		_, err = unix.Seek(fd, want.at, unix.SEEK_SET)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (r *removal) reopenParent() (int, error) {
	return unix.FcntlInt(uintptr(r.parent), unix.F_DUPFD_CLOEXEC, 0)
}
