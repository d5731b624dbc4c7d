package workspace

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpenDirs bounds the descriptors that one walk holds.
const maxOpenDirs = 512

// walk resolves one path name by name where openat2 can't: each name is opened
// without following it, links are read and their text taken up, and "..": the
// folder that the walk came through, which it still holds. So there is no
// moment at which a renamed folder or a swapped link leads outside.
//
// It needs only calls that act on the calling thread, like openat2, because
// the guest runs it with that thread's own credentials.
type walk struct {
	mount mountID
	dirs  []int // open folders below the start, innermost last
	links int
}

// open opens rel below at; see [tree.openAt].
func (w *walk) open(at int, rel string, flags int) (fd int, err error) {
	defer w.closeTo(0)
	rest := rel
	for {
		name, after, more := strings.Cut(rest, "/")
		last := strings.Trim(after, "/") == ""
		needDir := more && last // a slash after the last name
		switch name {
		case "", ".":
			if last {
				return w.reopen(w.top(at), flags)
			}
			rest = after
			continue
		case "..":
			if len(w.dirs) == 0 {
				return -1, errEscape
			}
			w.closeTo(len(w.dirs) - 1)
			if last {
				return w.reopen(w.top(at), flags)
			}
			rest = after
			continue
		}
		target, fd, err := w.step(w.top(at), name, last && !needDir, flags)
		switch {
		case err != nil:
			return -1, err
		case fd >= 0 && last && !needDir:
			return fd, nil
		case fd >= 0:
			w.dirs = append(w.dirs, fd)
			if len(w.dirs) > maxOpenDirs {
				return -1, unix.ENAMETOOLONG
			}
			if last {
				return w.reopen(fd, flags)
			}
			rest = after
		default:
			if rest, err = splice(target, after, more); err != nil {
				return -1, err
			}
		}
	}
}

// top is the folder that the next name is looked up in.
func (w *walk) top(at int) int {
	if n := len(w.dirs); n > 0 {
		return w.dirs[n-1]
	}
	return at
}

func (w *walk) closeTo(n int) {
	for _, fd := range w.dirs[n:] {
		_ = unix.Close(fd)
	}
	w.dirs = w.dirs[:n]
}

// reopen opens a folder that the walk holds with the flags that were asked for.
func (w *walk) reopen(dir, flags int) (int, error) {
	return openat(dir, ".", flags)
}

// step opens one name in dir: as a folder to go on from, or, where it is the
// last, with flags. Where it is a link that is to be followed, it gives its
// target and no descriptor. The name is first opened without asking what is
// there anything (O_PATH), so that a mount is known before it can block.
func (w *walk) step(dir int, name string, last bool, flags int) (target string, fd int, err error) {
	fd, err = openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	got := -1
	switch typ := typeOf(f.Mode); {
	case err != nil:
	case typ == TypeLink && (!last || flags&unix.O_NOFOLLOW == 0):
		target, err = w.link(fd)
	case f.mount != w.mount:
		err = ErrMount
	case last:
		got, err = w.last(dir, fd, name, typ, flags)
	case typ != TypeDir:
		err = unix.ENOTDIR
	default:
		return "", fd, nil
	}
	if got != fd {
		_ = unix.Close(fd)
	}
	return target, got, err
}

// last opens the last name of a path with flags, now that it is known what it
// is; found is its descriptor, which is given back where that is enough.
func (w *walk) last(dir, found int, name string, typ Type, flags int) (int, error) {
	switch {
	case typ == TypeLink && flags&unix.O_PATH == 0:
		return -1, unix.ELOOP
	case typ != TypeDir && flags&unix.O_DIRECTORY != 0:
		return -1, unix.ENOTDIR
	case flags&unix.O_PATH != 0:
		return found, nil
	case typ == TypeDir:
		return openat(found, ".", flags)
	}
	fd, err := openat(dir, name, flags|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	m, err := mountOf(fd) // of what is there now
	if err == nil && m != w.mount {
		err = ErrMount
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// link reads a link and counts it.
func (w *walk) link(fd int) (string, error) {
	if w.links++; w.links > maxLinks {
		return "", errLoop
	}
	return readLink(fd, "")
}

// splice puts a link's target in front of what is left of the path.
func splice(target, after string, more bool) (string, error) {
	switch {
	case target == "":
		return "", unix.ENOENT
	case target[0] == '/':
		return "", fmt.Errorf("%w: absolute link", errEscape)
	case !more:
		return target, nil
	case len(target)+len(after) > 4*MaxPathBytes:
		return "", unix.ENAMETOOLONG
	}
	return target + "/" + after, nil
}

func openat(at int, name string, flags int) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}
