package boot

import "golang.org/x/sys/unix"

// forbidCores sets the limit of core files to 1 byte, at which the kernel
// neither writes one nor runs the program of a core pattern that is a pipe; at 0
// it runs it, as root on the host (coredump_pipe in fs/coredump.c). A limit that
// is 0 for good, an ordinary user's, stays so.
func forbidCores() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return err
	}
	bytes := min(l.Max, 1)
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: bytes, Max: bytes})
}
