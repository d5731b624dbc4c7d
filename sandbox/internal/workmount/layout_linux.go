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
		var st unix.Stat_t
		if err := unix.Fstatat(int(w.Dir.Fd()), g.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			st = unix.Stat_t{} // reserved, and not there yet
		}
		fmt.Fprintf(&b, "\n%+v %d:%d %o %d:%d", g, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid)
	}
	return b.String(), nil
}
