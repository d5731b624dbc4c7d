package workspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveTree removes a directory with everything in it, whatever commands made of it: any depth,
// any number of entries, directories that their owner can't enter. It never follows a symlink
// and never enters a mount: with one inside, it stops with EXDEV or EBUSY, because the user's
// workspace may be mounted there. It is not an error if there is none.
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

// RemoveTreeAt is [RemoveTree] for a path below a directory, without symlinks.
func RemoveTreeAt(base *os.File, name string) error {
	parent, err := unix.Openat2(int(base.Fd()), filepath.Dir(name), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: withinMount,
	})
	if err != nil {
		return fmt.Errorf("remove directory %s: %w", name, err)
	}
	defer unix.Close(parent)
	r := treeRemover{top: -1}
	if err := r.remove(parent, filepath.Base(name), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove directory %s: %w", name, err)
	}
	return nil
}

// withinMount resolves within one mount, without symlinks.
const withinMount = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// maxRemoveDepth bounds the recursion, and with it the open directories. What lies
// deeper is moved to the top and removed from there.
const maxRemoveDepth = 64

// removeBatch is the number of names that are read at once.
const removeBatch = 1024

// treeRemover removes one tree.
type treeRemover struct {
	top   int // descriptor of the topmost directory; -1 before it is open
	moved int // how many directories were moved there
}

func (r *treeRemover) remove(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	dir, err := openToRemove(parent, name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if depth > maxRemoveDepth {
		return r.moveUp(parent, name) // which takes permission to change it, too
	}
	if depth == 0 {
		r.top = int(dir.Fd())
	}
	for {
		if err := r.removeEntries(dir, depth); err != nil {
			return err
		}
		// Not empty: directories were moved here, or entries skipped because the
		// directory changed while it was read.
		if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// removeEntries removes the entries of a directory as they are read.
func (r *treeRemover) removeEntries(dir *os.File, depth int) error {
	for {
		names, err := dir.Readdirnames(removeBatch)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for _, n := range names {
			if err := r.remove(int(dir.Fd()), n, depth+1); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("%s: %w", n, err)
			}
		}
	}
}

// moveUp moves a directory to the topmost one.
func (r *treeRemover) moveUp(parent int, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(parent, name, r.top, fmt.Sprintf(".removed-%d", r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// openToRemove opens a directory for reading, after making it accessible if it
// is this user's.
func openToRemove(parent int, name string) (*os.File, error) {
	at, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: withinMount,
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", at)
	if int(st.Uid) == os.Geteuid() && st.Mode&0o700 != 0o700 {
		if err := unix.Chmod(self, 0o700); err != nil {
			return nil, err
		}
	}
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
