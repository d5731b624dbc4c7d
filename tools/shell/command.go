package shell

import (
	"context"

	"github.com/caisson-run/caisson/sandbox"
)

// Command is one shell command to run. It must not be changed while it runs.
type Command struct {
	// Script is the script for the shell, which is bash if the image has it and
	// else sh. It has at most [MaxScriptBytes] and no NUL.
	Script string
	// Args are the script's positional parameters, $1 and so on. Each has at most
	// MaxScriptBytes and no NUL.
	Args []string
	// Command holds the rest. Its Argv is not set: the runner makes it of the
	// script. Timeout zero is a background command without a limit. Stdout and
	// Stderr never fail; they are nil for background commands only.
	sandbox.Command
	// CallID is the ID of the call that runs the command.
	CallID string
}

// MaxScriptBytes is the maximum size of a script. Linux accepts arguments of at
// most 128 KiB, including the NUL (MAX_ARG_STRLEN).
const MaxScriptBytes = 128<<10 - 1

// Result is the outcome of a command. The zero value is exit code 0 without output.
type Result struct {
	sandbox.Exit
	// Refused lists connections of the command that were refused, and Allowed the rules
	// of what it may reach; both are empty if nothing was refused. They are safe for
	// display.
	Refused []Refused
	Allowed []string
	// Offline is set if the command had no network.
	Offline bool
	// Notice is a sentence about the sandbox that the model was not told yet, or "".
	Notice string
	// Stdout and Stderr are the captured output.
	Stdout, Stderr Capture
}

// Refused is a host that a command was not connected to.
type Refused struct {
	Host   string `json:"host"` // with a port, unless it is a name that was looked up
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// KilledProcesses returns the number of processes that had to be killed. The
// processes that a command leaves must go, whether SIGTERM was enough or not.
func (r Result) KilledProcesses() int {
	if r.Kill.AfterExit {
		return max(r.Kill.Terminated, r.Kill.Killed)
	}
	return r.Kill.Killed
}

// Capture is one output stream: its first and last bytes, which don't overlap.
// The Total-len(Head)-len(Tail) bytes between them were not kept.
type Capture struct {
	Head, Tail []byte
	// Total is the exact number of bytes that were written, SHA256 their hash in
	// hexadecimal.
	Total  int64
	SHA256 string
	// Spill is a file below the session's directory with the beginning of the
	// stream, up to a limit. It is "" if Head and Tail are the whole stream.
	Spill string
	// Handle is the name of the stream for the tool of [NewOutput], or "" if that
	// tool can't read it.
	Handle string
}

// commandRunner runs a command to its end. Cancelling ctx ends the command and
// everything that it started; the error then wraps context.Cause(ctx). The result
// is valid even if there is an error. A failing command is not an error.
type commandRunner interface {
	Run(ctx context.Context, cmd Command) (Result, error)
}
