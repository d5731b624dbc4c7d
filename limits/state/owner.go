package state

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// noFollow are the flags to open a file that must be neither a symlink nor a pipe.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// UnsafeReason returns the reason why a file or directory can't be trusted with state, as the
// predicate of a sentence, or "" if only the user of this process can change it.
func UnsafeReason(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || int(stat.Uid) != os.Geteuid():
		return "belongs to another user"
	case info.Mode().Perm()&0o022 != 0:
		return "can be written by other users"
	}
	return ""
}

// BootID returns the ID that changes with each start of the machine; random(4). It is empty if
// unknown.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
