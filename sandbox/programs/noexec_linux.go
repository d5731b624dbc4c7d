package programs

import "golang.org/x/sys/unix"

// CheckExec returns a [*NoExecError] if path is on a file system that is mounted
// noexec. It returns nil if that is not known.
func CheckExec(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		return nil
	}
	return &NoExecError{path}
}
