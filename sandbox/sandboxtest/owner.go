//go:build linux

package sandboxtest

import (
	"fmt"
	"os"
	"syscall"
)

// ownerOf returns "uid:gid" of a file, symlinks not followed.
func ownerOf(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("%s: no owner", path)
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid), nil
}
