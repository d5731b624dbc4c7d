package runner

import (
	"io/fs"
	"os"
	"syscall"
)

// fileOwners returns the owner of a directory and this process's user.
func fileOwners(info fs.FileInfo) (owner, self int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(stat.Uid), os.Geteuid(), true
}
