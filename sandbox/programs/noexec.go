package programs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoExecError reports a program, or a directory of programs, on a file system
// that is mounted noexec.
type NoExecError struct{ Path string }

// Error names the path and the cause.
func (e *NoExecError) Error() string {
	return fmt.Sprintf("%s is on a file system that is mounted noexec, so that no program on it can be started", e.Path)
}

// CheckExec returns a [*NoExecError] if path is on a file system that is mounted
// noexec. It returns nil if that is not known.
func CheckExec(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		return nil
	}
	return &NoExecError{path}
}
