package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/runner/internal/execapi"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// UserCommand is a command that a user runs in the sandbox of a session that
// another process owns.
type UserCommand struct {
	// Argv is the program and its arguments, Dir a folder in the container, ""
	// the workspace.
	Argv []string
	Dir  string
	// Timeout bounds its wall time; zero is the session's own bound.
	Timeout time.Duration
	// Stdin is nil where it gets none. It is read until the command has ended,
	// and one read longer if that read does not return.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Abandon, when it is closed, hangs up without waiting for the end of a
	// cancelled command; the owner ends it all the same. Nil never does.
	Abandon <-chan struct{}
}

// UserResult is how a user's command ended.
type UserResult struct {
	Status sandbox.ExitStatus
	// Killed is the number of processes that had to be killed, Left of those
	// that could not be.
	Killed, Left int
}

// Listens reports whether a process takes commands for a session: its socket is
// there. Whether the process answers shows in [RunUserCommand].
func Listens(stateDir, session string) bool {
	matches, err := filepath.Glob(filepath.Join(sessiondir.Path(stateDir, session), sessiondir.SandboxDir, sandbox.ExecSocket))
	return err == nil && len(matches) > 0
}

// RunUserCommand runs a command in a live session's sandbox, by the process
// that owns it. Cancelling ctx cancels the command, and its result is still
// waited for. Its errors are an [Error]: 42 where no such session lives or the
// command can't be run as given, 45 where the sandbox or its owner was lost.
func RunUserCommand(ctx context.Context, stateDir, session string, c UserCommand) (UserResult, error) {
	conn, err := execapi.Dial(filepath.Join(sessiondir.Path(stateDir, session), sessiondir.SandboxDir), sandbox.ExecSocket)
	if err != nil {
		e := &Error{Status: ExitInput, Err: err, Problem: record.Problem{
			Cause: fmt.Sprintf("session %s can't be asked: %v", session, err), Mend: "caisson sandbox ls says what runs.",
		}}
		if errors.Is(err, fs.ErrNotExist) {
			e.Cause = fmt.Sprintf("no process owns a live sandbox of session %s", session)
		}
		return UserResult{}, e
	}
	var argv [][]byte
	for _, a := range c.Argv {
		argv = append(argv, []byte(a))
	}
	r, err := execapi.Run(ctx, conn, execapi.Request{Argv: argv, Dir: c.Dir, TimeoutMS: c.Timeout.Milliseconds()},
		execapi.Streams{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}, c.Abandon)
	if err != nil {
		return UserResult{}, &Error{Status: ExitSandboxLost, Err: err, Problem: record.Problem{
			Cause: "the command's end is not known: " + err.Error(), Mend: "The session's records say what became of it.",
		}}
	}
	if f := r.Failure; f != nil {
		return UserResult{}, &Error{Status: f.Status, Problem: record.Problem{Cause: f.Cause, Mend: f.Mend}}
	}
	return UserResult{
		Status: sandbox.ExitStatus{Code: r.Code, Signal: r.Signal, OOMKilled: r.OOMKilled, TimedOut: r.TimedOut, Cancelled: r.Cancelled},
		Killed: r.Killed, Left: r.Left,
	}, nil
}
