package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

func sameFileSystem(a, b string) bool {
	x, y := readStatus(a), readStatus(b)
	return x != nil && y != nil && x.Dev == y.Dev
}

// copyOwner gives path the owner of another directory, if this process is root.
func copyOwner(path, of string) error {
	st := readStatus(of)
	if st == nil || os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}

// findReplaceable returns why another user could replace a directory, or "": a
// parent belongs to that user, or everyone can write to it. The owner of /
// counts as root, because root itself may have no number in a user namespace.
func findReplaceable(path string) string {
	chains := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		chains = append(chains, real)
	}
	for _, chain := range chains {
		for dir := filepath.Dir(chain); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				return err.Error()
			}
			if why := foreignReason(dir, info); why != "" {
				return why
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return ""
}

// foreignReason returns why another user could change a directory's entries, or
// "".
func foreignReason(dir string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	root := readStatus("/")
	switch {
	case !ok || root == nil:
		return ""
	case st.Uid != 0 && st.Uid != root.Uid && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("%s belongs to uid %d", dir, st.Uid)
	case info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Sprintf("all users can write %s", dir)
	}
	return ""
}

func readStatus(path string) *syscall.Stat_t {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return st
}
