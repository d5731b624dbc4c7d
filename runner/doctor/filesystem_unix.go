//go:build unix

package doctor

import (
	"os"
	"syscall"
)

// sameFileSystem reports whether two directories are on one file system.
func sameFileSystem(a, b string) bool {
	x, y := readStatus(a), readStatus(b)
	return x != nil && y != nil && x.Dev == y.Dev
}

// copyOwner changes the owner of path to that of another directory, if this is root.
func copyOwner(path, of string) error {
	st := readStatus(of)
	if st == nil || os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}

func readStatus(path string) *syscall.Stat_t {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return st
}
