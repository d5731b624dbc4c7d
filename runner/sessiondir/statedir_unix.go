//go:build unix

package sessiondir

import (
	"io/fs"
	"os"
	"syscall"
)

// unsafeReason returns the reason why a directory can't be trusted with state, or "".
func unsafeReason(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return "is not a directory (a symlink does not count)"
	case !ok || int(stat.Uid) != os.Geteuid():
		return "belongs to another user"
	case info.Mode().Perm()&0o022 != 0:
		return "can be written by other users"
	}
	return ""
}

// hold marks a session's log as that of a process that lives: the kernel takes
// the lock away with the process.
func hold(log *os.File) error { return syscall.Flock(int(log.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// held reports whether a process has locked a log. Callers don't lock it for each
// other.
func held(log *os.File) bool {
	return syscall.Flock(int(log.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}
