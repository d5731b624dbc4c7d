package workmount

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// LayoutOf returns the current layout of a workspace. It returns the errors of
// [Prepare] for a workspace that would be refused.
func LayoutOf(w sandbox.Workspace, git sandbox.GitMode) (Layout, error) {
	path, err := resolvedPath(w.Dir)
	if err != nil {
		return Layout{}, err
	}
	mounts, err := listSubmounts("workspace "+path, path, w.Submounts)
	if err != nil {
		return Layout{}, err
	}
	list, lost, err := listGuards(w, path, git)
	if err != nil {
		return Layout{}, fmt.Errorf("workspace %s: %w", path, err)
	}
	dir := int(w.Dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil { // it is held, so that its number is its own
		return Layout{}, fmt.Errorf("workspace %s: %w", path, err)
	}
	l := Layout{
		dir:  fmt.Sprintf("%q %q %d:%d %o %d:%d", path, mounts, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid),
		lost: fmt.Sprintf("%q", lost),
	}
	for _, g := range list {
		s := guardState{name: g.name, binding: fmt.Sprintf("%+v", g), fileID: identifyFile(dir, g.name)}
		s.empty = s.fileID != "" && isEmpty(w.Dir, g.name)
		l.guards = append(l.guards, s)
	}
	return l, nil
}

// isEmpty reports whether a guarded file or directory contains no more than a
// placeholder.
func isEmpty(workspace *os.File, name string) bool {
	f, err := openBelow(workspace, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return err == nil && info.Mode().IsRegular() && info.Size() <= int64(len(".\n"))
	}
	_, err = f.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// identifyFile returns text that identifies a file or directory among all that
// exist, existed or will exist: an inode's number is used again, often for the
// next file, so the time of its birth belongs to it. On file systems without
// one, the time of the last change is used.
func identifyFile(dir int, name string) string {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return "" // reserved, and not there yet
	}
	born := st.Btime
	if st.Mask&unix.STATX_BTIME == 0 {
		born = st.Ctime
	}
	return fmt.Sprintf("%d:%d:%d %d.%09d %o %d:%d", st.Dev_major, st.Dev_minor, st.Ino, born.Sec, born.Nsec, st.Mode, st.Uid, st.Gid)
}
