package sessiondir

import (
	"os"
	"syscall"
)

// hold marks a session's log as that of a process that lives: the kernel takes
// the lock away with the process.
func hold(log *os.File) error { return syscall.Flock(int(log.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// held reports whether a process has locked a log. Callers don't lock it for each
// other.
func held(log *os.File) bool {
	return syscall.Flock(int(log.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}
