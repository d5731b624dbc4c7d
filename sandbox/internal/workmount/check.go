package workmount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

type node struct{ dev, ino uint64 }

// FileIdentity returns a file's device and inode. It does not follow a symlink.
func FileIdentity(name string) (device, inode uint64, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return 0, 0, &os.PathError{Op: "lstat", Path: name, Err: err}
	}
	return uint64(st.Dev), st.Ino, nil //nolint:unconvert // 32 bits on some processors
}

// resolvedPath returns the open directory's current path. It is for messages
// and for finding what is beside the directory, never for opening it again.
func resolvedPath(dir *os.File) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return "", fmt.Errorf("resolve mounted directory: %w", err)
	}
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("resolve mounted directory: %w: %q is not below the root directory", sandbox.ErrInvalid, path)
	}
	return path, nil
}

// place is an open directory to mount, and the directories above it.
type place struct {
	what string // for messages: "workspace /home/u/x"
	self node
	up   []node // self first, the root last
}

// examinePlace returns the place of an open directory. It refuses the root, a
// removed directory and anything else.
func examinePlace(dir *os.File, what string) (place, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return place{}, fmt.Errorf("examine %s: %w", what, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return place{}, fmt.Errorf("%s: %w: it is not a directory", what, sandbox.ErrInvalid)
	case st.Nlink == 0:
		return place{}, fmt.Errorf("%s: %w: the directory was removed", what, sandbox.ErrInvalid)
	}
	up, err := listAncestors(int(dir.Fd()))
	if err != nil {
		return place{}, fmt.Errorf("examine %s: %w", what, err)
	}
	if len(up) == 1 {
		return place{}, fmt.Errorf("%s: %w: it is the root directory, which can't be mounted", what, sandbox.ErrInvalid)
	}
	return place{what, node{st.Dev, st.Ino}, up}, nil
}

// checkProtected refuses a place that is or contains a protected directory or
// the state directory, or lies in the state directory but not below allowed. It
// compares device and inode all the way up to the root, so that no spelling of
// a path evades it.
func (p place) checkProtected(o Options, allowed string) error {
	for _, name := range append([]string{o.StateDir}, o.Protect...) {
		above, err := listAncestorsOf(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("examine %s: %w", name, err)
		}
		switch {
		case above[0] == p.self:
			return fmt.Errorf("%s: %w: it is %s, which commands must not change: use a directory of its own", p.what, sandbox.ErrInvalid, name)
		case slices.Contains(above, p.self):
			return fmt.Errorf("%s: %w: it holds %s, which commands must not reach: use a directory of its own", p.what, sandbox.ErrInvalid, name)
		case name == o.StateDir && slices.Contains(p.up, above[0]) && !p.isBelow(allowed):
			return fmt.Errorf("%s: %w: it lies in the state directory %s", p.what, sandbox.ErrInvalid, name)
		}
	}
	return nil
}

// isBelow reports whether a place lies below dir.
func (p place) isBelow(dir string) bool {
	above, err := listAncestorsOf(dir)
	return err == nil && slices.Contains(p.up[1:], above[0])
}

func listAncestorsOf(path string) ([]node, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return listAncestors(fd)
}

// listAncestors returns a directory and those above it, up to the root.
func listAncestors(dir int) ([]node, error) {
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return nil, err
	}
	root := node{st.Dev, st.Ino}
	fd, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	defer func() { unix.Close(fd) }()
	var out []node
	for range 4096 { // deeper than a path can be
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, err
		}
		out = append(out, node{st.Dev, st.Ino})
		if out[len(out)-1] == root {
			return out, nil
		}
		up, err := unix.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		unix.Close(fd)
		fd = up
	}
	return nil, errors.New("no end of parent directories")
}

// listSubmounts returns the mounts below a directory, relative to it. It
// refuses any that is not in named.
func listSubmounts(what, path string, named []string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", what, err)
	}
	var accepted, unnamed []string
	for _, info := range infos {
		rel, err := filepath.Rel(path, info.Mountpoint)
		if err != nil || rel == "." || !filepath.IsLocal(rel) {
			continue
		}
		if slices.ContainsFunc(named, func(n string) bool { return samePlace(path, rel, n) }) {
			if !slices.Contains(accepted, rel) {
				accepted = append(accepted, rel)
			}
			continue
		}
		unnamed = append(unnamed, rel)
	}
	if len(unnamed) > 0 {
		return nil, fmt.Errorf("%s: %w: other file systems are mounted in it (%s): name them to have them mounted too, or unmount them",
			what, sandbox.ErrInvalid, strings.Join(unnamed, ", "))
	}
	slices.Sort(accepted) // parents first
	return accepted, nil
}

// samePlace reports whether a user's name, absolute or relative to the
// workspace, means rel.
func samePlace(path, rel, name string) bool {
	if filepath.IsAbs(name) {
		return filepath.Clean(name) == filepath.Join(path, rel)
	}
	return filepath.Clean(name) == rel
}
