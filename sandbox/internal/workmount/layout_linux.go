package workmount

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// Layout says, as a text to compare, how a workspace would be mounted now:
// which folder it is and whose, which mounts are in it, what of it is guarded
// and which file or folder that is. A sandbox that was started when it said the
// same guards what one that is started now would guard. It fails with the
// errors of [Prepare] where the workspace would be refused.
func Layout(w sandbox.Workspace, git sandbox.GitMode) (string, error) {
	path, err := resolvedPath(w.Dir)
	if err != nil {
		return "", err
	}
	mounts, err := submounts(path, w.Submounts)
	if err != nil {
		return "", err
	}
	list, lost, err := guards(w.Dir, path, git)
	if err != nil {
		return "", fmt.Errorf("workspace %s: %w", path, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q", path, mounts, lost)
	for _, g := range append([]guard{{name: "."}}, list...) {
		fmt.Fprintf(&b, "\n%+v %s", g, which(int(w.Dir.Fd()), g.name))
	}
	return b.String(), nil
}

// which tells a file or folder from every other that there was or will be: an
// inode's number is used again, often for what is made next, so that the time
// of its birth belongs to it; where the file system has none, the time of its last
// change.
func which(dir int, name string) string {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return "missing" // reserved, and not there yet
	}
	born := st.Btime
	if st.Mask&unix.STATX_BTIME == 0 {
		born = st.Ctime
	}
	return fmt.Sprintf("%d:%d:%d %d.%09d %o %d:%d", st.Dev_major, st.Dev_minor, st.Ino, born.Sec, born.Nsec, st.Mode, st.Uid, st.Gid)
}
