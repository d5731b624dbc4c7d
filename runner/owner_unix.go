//go:build unix

package runner

import (
	"io/fs"
	"os"
	"syscall"
)

// owners returns the owner of a directory and this process's user.
func owners(info fs.FileInfo) (owner, self int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(stat.Uid), os.Geteuid(), true
}
