package verify

import (
	"context"
	"time"
)

// Command is one command line of a shell check.
type Command struct {
	Script string
	// Timeout bounds its wall time; it is positive.
	Timeout time.Duration
}

// Ended is how a command ended.
type Ended struct {
	// Code is the exit code, -1 where a signal ended it, whose number is Signal.
	Code, Signal int
	TimedOut     bool
	OOMKilled    bool
	// DiskFull says that it was ended because the host's disk was nearly full.
	DiskFull bool
	// Stdout is what it wrote, or its first and last bytes; Cut says that some
	// are missing between them.
	Stdout string
	Cut    bool
}

// runner runs a command in the session's sandbox, in the workspace. Cancelling
// ctx ends it; the error then wraps context.Cause(ctx). How the command itself
// ended is never an error.
type commandRunner interface {
	RunCheck(ctx context.Context, c Command) (Ended, error)
}
