package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// inDir is how a scan opens a directory by its name in another one.
const inDir = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// scanDir is an open directory of a scan.
type scanDir struct {
	fd    int
	state dirState
}

// openScan opens name in parent, or, if that is nil, the path name of the
// workspace. It enters another mount only where cross says so.
func (t *tree) openScan(parent *scanDir, name string, cross bool) (*scanDir, error) {
	fd, err := t.openScanAt(parent, name, cross)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if err == nil && os.Geteuid() != 0 {
		if err = unix.Faccessat(fd, ".", unix.X_OK, unix.AT_EACCESS); err != nil {
			_ = unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("%w: %w", errClosedDir, err)
	}
	if err != nil {
		return nil, err
	}
	d := &scanDir{fd: fd}
	d.state, _ = d.stateOf("")
	return d, nil
}

// stateOf returns the state of a directory in d, or of d itself if name is "". It is
// unknown if there is an error.
func (d *scanDir) stateOf(name string) (dirState, error) {
	st, err := statx(d.fd, name, unix.AT_EMPTY_PATH)
	if err != nil {
		return dirState{}, err
	}
	return dirState{st.Ino, cmp.Or(st.mount.id, st.mount.dev), time.Unix(st.Ctim.Unix()).UnixNano()}, nil
}

func (t *tree) openScanAt(parent *scanDir, name string, cross bool) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	switch {
	case parent == nil:
		return t.openDir(name, false)
	case cross:
		return openat(parent.fd, name, flags)
	case !t.walking.Load():
		fd, err := openat2(parent.fd, name, flags, inDir)
		if errors.Is(err, unix.EXDEV) {
			err = fmt.Errorf("%w: %w", ErrMount, err)
		}
		return fd, err
	}
	fd, err := openat(parent.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && f.mount != t.mount {
		err = ErrMount
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return openForReading(fd)
}

func (d *scanDir) close() { _ = unix.Close(d.fd) }

// nextNames returns the next entries; none are the end.
func (d *scanDir) nextNames(ctx context.Context) ([]dirName, error) {
	buf := make([]byte, scanBatch)
	for {
		if ctx.Err() != nil { // given up: the descriptor may be another file's by now
			return nil, context.Cause(ctx)
		}
		n := 0
		err := retry(func() (err error) {
			n, err = unix.Getdents(d.fd, buf)
			return err
		})
		if err != nil || n <= 0 {
			return nil, err
		}
		var names []dirName
		for rest := buf[:n]; len(rest) > 0; {
			var e dirName
			if e, rest = nextDirent(rest); e.name != "" && e.name != "." && e.name != ".." {
				names = append(names, e)
			}
		}
		if len(names) > 0 {
			return names, nil
		}
	}
}

// stat describes one entry of the directory.
func (d *scanDir) stat(name string) (ScanStat, error) {
	st, err := statx(d.fd, name, 0)
	if err != nil {
		return ScanStat{}, err
	}
	out := ScanStat{
		Type: typeOf(st.Mode), Mode: st.Mode & 0o7777, Links: st.links, Size: st.Size, Blocks: st.Blocks,
		Device: st.Dev, Inode: st.Ino, UID: st.Uid, GID: st.Gid, ModTime: time.Unix(st.Mtim.Unix()), ChangeTime: time.Unix(st.Ctim.Unix()),
	}
	if out.Type == TypeSymlink {
		out.Target, err = readLink(d.fd, name)
	}
	return out, err
}

// statEntry describes rel, a symlink itself if it is one.
func (t *tree) statEntry(rel string) (ScanStat, error) {
	dir, name := splitPath(rel)
	if name == "" {
		name = "."
	}
	fd, err := t.openPath(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return ScanStat{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	return (&scanDir{fd: fd}).stat(name)
}
