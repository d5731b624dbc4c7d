package verify

import (
	"context"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// Command is the command line of a shell check.
type Command struct {
	Script string
	// Timeout limits the wall time. It is positive.
	Timeout time.Duration
}

// Ended is the outcome of a command.
type Ended struct {
	sandbox.Exit
	// Stdout is the standard output. If Cut is set, bytes are missing in its middle.
	Stdout string
	Cut    bool
}

// commandRunner runs a command in the session's sandbox, in the workspace.
// Cancelling ctx ends the command; the error then wraps context.Cause(ctx). A
// failing command is not an error.
type commandRunner interface {
	RunCheck(ctx context.Context, c Command) (Ended, error)
}
