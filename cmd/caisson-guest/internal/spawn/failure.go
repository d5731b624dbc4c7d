package spawn

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Failure is a program that could not be executed: no error of the guest's but
// an exit status, as a shell gives one.
type Failure struct {
	// Code is 127 for a program that is not there, 126 for one that can't be run.
	Code int
	// Text says why, in one line.
	Text string
	// Limit says that the limit of processes refused it.
	Limit bool
}

// Error gives the text.
func (f *Failure) Error() string { return f.Text }

// Explain says what an exec or a fork of a program failed with: mostly a
// [*Failure].
func (s *Spawner) Explain(name, program string, err error) (out error) {
	s.do(func() { out = s.explain(name, program, err) })
	return out
}

func (s *Spawner) explain(name, program string, err error) error {
	exists := s.as(func() error {
		_, err := os.Lstat(program)
		return err
	}) == nil
	code, text := 126, ""
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return fmt.Errorf("start process: %w", err)
	}
	switch errno {
	case unix.ENOENT:
		code, text = 127, "not found"
		if exists {
			code, text = 126, "its interpreter or loader is not found"
		}
	case unix.ENOTDIR:
		code, text = 127, "not found"
	case unix.ENOEXEC:
		text = "exec format error: no program, and no script with an interpreter line"
	case unix.E2BIG:
		text = "argument list too long"
	case unix.EAGAIN:
		text = "can't start another process: the sandbox's limit of processes is reached"
	default:
		text = errno.Error()
	}
	return &Failure{Code: code, Text: fmt.Sprintf("%s: %s", short(name), text), Limit: errno == unix.EAGAIN}
}

// short quotes a name for one line of a message.
func short(name string) string {
	const most = 200
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}
