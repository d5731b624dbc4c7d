package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenDir opens a workspace's directory for a Reader and for mounts. The caller
// closes it. It refuses a path through a symlink that an earlier session could have
// made: otherwise a workspace's content could choose the next session's directory.
// Symlinks of the system are allowed: those directly below "/" and, unless Caisson
// runs as root, those that root owns in a directory that only root can write.
// Errors are an [*Error] with [KindEscape] (a symlink), [KindNotDir],
// [KindNotFound] or [KindPermission].
func OpenDir(path string) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	fd, err := openNoLinks(abs)
	if errors.Is(err, unix.ELOOP) {
		detail := "is reached through a symlink, which an earlier session could have made"
		if real, err := filepath.EvalSymlinks(abs); err == nil {
			detail += fmt.Sprintf("; if that is what you mean, name the directory itself: %q", real)
		}
		return nil, &Error{Kind: KindEscape, Path: path, Err: err, Detail: detail}
	}
	if err != nil {
		e := newError(path, err)
		if e.Kind == KindNotDir {
			e.Detail = "is not a directory"
		}
		return nil, e
	}
	return os.NewFile(uintptr(fd), abs), nil
}

// openNoLinks opens an absolute path. It follows only symlinks of the system.
func openNoLinks(abs string) (int, error) {
	for range maxLinks {
		fd, instead, err := openByName(abs)
		if instead == "" {
			return fd, err
		}
		abs = instead
	}
	return -1, unix.ELOOP
}

// openByName opens an absolute path name by name. At a symlink of the system it
// returns the path to try instead, and no descriptor.
func openByName(abs string) (fd int, instead string, err error) {
	names := strings.Split(strings.Trim(filepath.Clean(abs), "/"), "/")
	dir, err := openDirAt(unix.AT_FDCWD, "/")
	if err != nil || names[0] == "" {
		return dir, "", err
	}
	for i, name := range names {
		next, err := openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err == nil && i == len(names)-1 {
			next, err = openForReading(next)
		}
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			instead, err = systemLink(dir, name, "/"+strings.Join(names[:i], "/"))
			if err == nil {
				instead = filepath.Join(append([]string{instead}, names[i+1:]...)...)
			}
		}
		_ = unix.Close(dir)
		if err != nil || instead != "" {
			return -1, instead, err
		}
		dir = next
	}
	return dir, "", nil
}

// systemLink returns the absolute target of the symlink name in dir if no session
// can have made it. Otherwise the error is ELOOP, or ENOTDIR for anything but a
// symlink.
func systemLink(dir int, name, parent string) (string, error) {
	target, err := readLink(dir, name)
	if errors.Is(err, unix.EINVAL) {
		return "", unix.ENOTDIR
	}
	if err != nil {
		return "", err
	}
	var directory, link unix.Stat_t
	if err := errors.Join(unix.Fstat(dir, &directory), unix.Fstatat(dir, name, &link, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return "", err
	}
	rootOnly := directory.Uid == 0 && directory.Mode&0o022 == 0 && link.Uid == 0
	if !rootOnly || os.Geteuid() == 0 && parent != "/" {
		return "", unix.ELOOP
	}
	if filepath.IsAbs(target) {
		return target, nil
	}
	return filepath.Join(parent, target), nil
}

// OpenFile is [os.OpenFile] for a file that may be in a workspace. It opens the
// file's directory like [OpenDir], refuses a symlink, and doesn't wait for the
// other end of a pipe.
func OpenFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := OpenDir(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(abs), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, uint32(mode.Perm()))
	if errors.Is(err, unix.ELOOP) {
		return nil, &Error{Kind: KindEscape, Path: abs, Err: err, Detail: "is a symlink"}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: abs, Err: err}
	}
	return os.NewFile(uintptr(fd), abs), nil
}
