package spawn

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Failure is a program that could not be executed. As in a shell, that is an
// exit status, not an error of the guest.
type Failure struct {
	// Code is 127 if the program is missing, 126 if it can't be run.
	Code int
	// Text is the reason, in one line.
	Text string
	// Limit reports that the limit of processes refused it.
	Limit bool
}

func (f *Failure) Error() string { return f.Text }

// Explain returns the error of an exec or fork of a program: mostly a
// [*Failure].
func (s *Spawner) Explain(name, program string, err error) (out error) {
	s.thread.Do(func() { out = s.explainError(Request{Argv: []string{name}}, program, err) })
	return out
}

func (s *Spawner) explainError(r Request, program string, err error) error {
	exists := s.withIdentity(r.Identity, func() error {
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
	return &Failure{Code: code, Text: fmt.Sprintf("%s: %s", quoteShort(r.Argv[0]), text), Limit: errno == unix.EAGAIN}
}

// quoteShort quotes a name for one line of a message.
func quoteShort(name string) string {
	const most = 200
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}
