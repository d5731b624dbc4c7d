package workmount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// Layout is a fingerprint of how a workspace is mounted: its directory and
// owner, the mounts inside it, and each guarded name with its inode. Equal
// layouts need equal guards, so a sandbox started with an equal one may be
// used.
type Layout struct {
	dir    string
	lost   string
	guards []guardState
}

// guardState is a guard and the file that has its name.
type guardState struct {
	name    string
	binding string // the guard's fields as text
	// fileID identifies the file among all others; "" means that the name would
	// be reserved.
	fileID string
	// empty reports that it contains no more than a placeholder.
	empty bool
}

// Equal reports whether two layouts are the same.
func (l Layout) Equal(other Layout) bool {
	return l.dir == other.dir && l.lost == other.lost && slices.EqualFunc(l.guards, other.guards, func(a, b guardState) bool {
		return a.name == b.name && a.binding == b.binding && a.fileID == b.fileID
	})
}

// AllowsFrom reports whether after differs from l at most by a sandbox's own
// placeholders. If so, all that is guarded in after was guarded in the meantime
// too.
func (l Layout) AllowsFrom(after Layout) bool {
	if l.Equal(after) {
		return true
	}
	if l.dir != after.dir {
		return false
	}
	if g, ok := l.findGuard(gitName); (!ok || g.fileID != "") && l.lost != after.lost {
		return false // an empty .git loses other protections than a missing one
	}
	for _, g := range l.guards {
		now, ok := after.findGuard(g.name)
		switch {
		case !ok:
			return false
		case g.fileID != "" && (g.fileID != now.fileID || g.binding != now.binding):
			return false
		case g.fileID == "" && now.fileID != "" && !now.empty:
			return false
		}
	}
	for _, g := range after.guards {
		if _, ok := l.findGuard(g.name); !ok && g.fileID != "" {
			return false
		}
	}
	return true
}

func (l Layout) findGuard(name string) (guardState, bool) {
	i := slices.IndexFunc(l.guards, func(g guardState) bool { return g.name == name })
	if i < 0 {
		return guardState{}, false
	}
	return l.guards[i], true
}

// LayoutOf returns the current layout of a workspace. For a workspace that
// [Prepare] would refuse, it returns the same error.
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
	if err := unix.Fstat(dir, &st); err != nil { // w.Dir is open, so its inode is not reused
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

// identifyFile returns text that identifies a file among all past, present and
// future ones. Inode numbers are reused, often for the very next file, so it
// includes the birth time, or the change time if the file system has none.
func identifyFile(dir int, name string) string {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return "" // to be reserved, and missing
	}
	born := st.Btime
	if st.Mask&unix.STATX_BTIME == 0 {
		born = st.Ctime
	}
	return fmt.Sprintf("%d:%d:%d %d.%09d %o %d:%d", st.Dev_major, st.Dev_minor, st.Ino, born.Sec, born.Nsec, st.Mode, st.Uid, st.Gid)
}
