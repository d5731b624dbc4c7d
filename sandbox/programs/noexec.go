package programs

import "fmt"

// NoExecError reports a program, or a directory of programs, on a file system
// that is mounted noexec.
type NoExecError struct{ Path string }

// Error names the path and the cause.
func (e *NoExecError) Error() string {
	return fmt.Sprintf("%s is on a file system that is mounted noexec, so that no program on it can be started", e.Path)
}
