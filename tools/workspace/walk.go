package workspace

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpenDirs bounds the descriptors that one walk holds.
const maxOpenDirs = 512

// walk resolves one path name by name where openat2 can't. It opens each name
// without following it, reads symlinks and continues with their text, and goes back
// for ".." to the directory it came through, which it still holds. So a renamed
// directory or a swapped symlink can't lead outside at any moment.
//
// It makes only calls that act on the calling thread, because the guest runs it
// with that thread's own credentials.
type walk struct {
	mount mountID
	dirs  []int // open directories below the start, innermost last
	links int
}

// openPath opens rel below at, as [tree.openAt] does.
func (w *walk) openPath(at int, rel string, flags int) (fd int, err error) {
	defer w.closeTo(0)
	rest := rel
	for {
		name, after, more := strings.Cut(rest, "/")
		last := strings.Trim(after, "/") == ""
		needDir := more && last // a slash after the last name
		switch name {
		case "", ".":
			if last {
				return openat(w.topDirectory(at), ".", flags)
			}
			rest = after
			continue
		case "..":
			if len(w.dirs) == 0 {
				return -1, errEscape
			}
			w.closeTo(len(w.dirs) - 1)
			if last {
				return openat(w.topDirectory(at), ".", flags)
			}
			rest = after
			continue
		}
		target, fd, err := w.openStep(w.topDirectory(at), name, last && !needDir, flags)
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
				return openat(fd, ".", flags)
			}
			rest = after
		default:
			if rest, err = joinTarget(target, after, more); err != nil {
				return -1, err
			}
		}
	}
}

func (w *walk) topDirectory(at int) int {
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

// openStep opens one name in dir: as a directory to continue from, or, if it is the
// last, with flags. For a symlink to follow, it returns the target and no
// descriptor. It first opens the name with O_PATH, which doesn't touch the file, so
// that a mount is recognised before it can block.
func (w *walk) openStep(dir int, name string, last bool, flags int) (target string, fd int, err error) {
	fd, err = openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	got := -1
	switch typ := typeOf(f.Mode); {
	case err != nil:
	case typ == TypeSymlink && (!last || flags&unix.O_NOFOLLOW == 0):
		target, err = w.readTarget(fd)
	case f.mount != w.mount:
		err = ErrMount
	case last:
		got, err = w.openLast(dir, fd, name, typ, flags)
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

// openLast opens the last name of a path with flags, now that its type is known. It
// returns found, the name's O_PATH descriptor, if that is enough.
func (w *walk) openLast(dir, found int, name string, typ Type, flags int) (int, error) {
	switch {
	case typ == TypeSymlink && flags&unix.O_PATH == 0:
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
	f, err := statx(fd, "", unix.AT_EMPTY_PATH) // the file may have been replaced
	if err == nil && f.mount != w.mount {
		err = ErrMount
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (w *walk) readTarget(fd int) (string, error) {
	if w.links++; w.links > maxLinks {
		return "", unix.ELOOP
	}
	return readLink(fd, "")
}

func joinTarget(target, after string, more bool) (string, error) {
	switch {
	case target == "":
		return "", unix.ENOENT
	case target[0] == '/':
		return "", fmt.Errorf("%w: absolute symlink", errEscape)
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
