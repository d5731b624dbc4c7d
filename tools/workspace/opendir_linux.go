package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenDir opens the folder that is to be a workspace, once, for a Reader and
// for mounts; whoever opened it closes it. It refuses what is no folder, and a
// path that goes through a link which an earlier session could have made: with
// such a link a workspace's content would choose the folder that the next
// session works on. Links of the system pass: those directly below "/", and,
// unless Caisson runs as root, those that root owns in a folder that only root
// can write. Errors are an [*Error] with [KindEscape] (a link),
// [KindNotDir], [KindNotFound] or [KindPermission].
func OpenDir(path string) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	fd, err := openNoLinks(abs)
	if errors.Is(err, unix.ELOOP) {
		return nil, &Error{Kind: KindEscape, Path: path, Err: err, Detail: linkDetail(abs)}
	}
	if err != nil {
		e := fault(path, err)
		if e.Kind == KindNotDir {
			e.Detail = "is not a folder"
		}
		return nil, e
	}
	return os.NewFile(uintptr(fd), abs), nil
}

func linkDetail(abs string) string {
	detail := "is reached through a symbolic link, which an earlier session could have made"
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		detail += fmt.Sprintf("; if that is what you mean, name the folder itself: %q", real)
	}
	return detail
}

// openNoLinks opens an absolute path, through links of the system only.
func openNoLinks(abs string) (int, error) {
	for range maxLinks {
		fd, instead, err := descend(abs)
		if instead == "" {
			return fd, err
		}
		abs = instead
	}
	return -1, unix.ELOOP
}

// descend opens an absolute path name by name. Where it meets a link of the
// system, it gives the path to try instead, and no descriptor.
func descend(abs string) (fd int, instead string, err error) {
	names := strings.Split(strings.Trim(filepath.Clean(abs), "/"), "/")
	dir, err := openDirAt(unix.AT_FDCWD, "/")
	if err != nil || names[0] == "" {
		return dir, "", err
	}
	for i, name := range names {
		next, err := openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err == nil && i == len(names)-1 {
			next, err = readable(next)
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

// systemLink gives where the link name in the folder dir leads, as an absolute
// path, if no session can have made it: ELOOP otherwise, ENOTDIR for no link.
func systemLink(dir int, name, parent string) (string, error) {
	target, err := readLink(dir, name)
	if errors.Is(err, unix.EINVAL) {
		return "", unix.ENOTDIR
	}
	if err != nil {
		return "", err
	}
	var folder, link unix.Stat_t
	if err := errors.Join(unix.Fstat(dir, &folder), unix.Fstatat(dir, name, &link, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
		return "", err
	}
	rootOnly := folder.Uid == 0 && folder.Mode&0o022 == 0 && link.Uid == 0
	if !rootOnly || os.Geteuid() == 0 && parent != "/" {
		return "", unix.ELOOP
	}
	if filepath.IsAbs(target) {
		return target, nil
	}
	return filepath.Join(parent, target), nil
}
