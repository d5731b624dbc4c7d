package programs

import (
	"io/fs"
	"os"
	"syscall"
)

// onlyCallerWrites reports whether a file belongs to the user of this process and no
// other user can write it.
func onlyCallerWrites(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}
