package shell

import (
	"context"
	"io"
	"time"
)

// Command is one shell command to run. It is read while Run runs.
type Command struct {
	// Script is what the shell runs (bash where the image has it, else sh), at
	// most [MaxScriptBytes], without a NUL.
	Script string
	// Args are the script's positional parameters, $1 and so on; no element
	// holds a NUL or has more than MaxScriptBytes.
	Args []string
	// Dir is the absolute working folder in the container, at or below the
	// workspace by its name; who runs it opens it without following links
	// that leave the workspace.
	Dir string
	// NoLinks forbids symlinks in Dir: it was shown to a person by its name.
	NoLinks bool
	// Timeout bounds the wall time; it is positive, or zero for none where the
	// command runs in the background.
	Timeout time.Duration
	// Stdout and Stderr get the live output, each from one goroutine. They
	// never fail; they are nil for a command in the background alone.
	Stdout, Stderr io.Writer
	// CallID is the call that asked for the command.
	CallID string
}

// MaxScriptBytes bounds a script: Linux takes arguments of at most 128 KiB
// with their NUL (MAX_ARG_STRLEN).
const MaxScriptBytes = 128<<10 - 1

// Result is how a command ended. The zero value is exit code 0 without output.
type Result struct {
	// Code is the exit code, -1 where Signal ended it.
	Code int
	// Signal is the number of the signal that ended it, or 0.
	Signal int
	// OOMKilled, TimedOut and Cancelled say what forced it, as the sandbox knows it.
	OOMKilled, TimedOut, Cancelled bool
	// PIDsLimitHit says that the sandbox's limit of processes refused it one, and
	// Full names the folders in memory (/tmp, …) that had no room left at its end.
	PIDsLimitHit bool
	Full         []string
	// DiskReserve is the room in bytes that commands must leave on the host's
	// file system, if the command was ended because less was left; otherwise 0.
	// It counts files (inodes) instead where DiskFiles is set.
	DiskReserve int64
	DiskFiles   bool
	// Stdout and Stderr are what it wrote.
	Stdout, Stderr Capture
	// Killed is the number of processes that had to be killed, KilledAfterExit
	// says that they were left when the command itself had ended, and Left is
	// the number that could not be killed.
	Killed, Left    int
	KilledAfterExit bool
	// Wall and CPU are the times that it took.
	Wall, CPU time.Duration
	// PeakMemory is the largest resident set, in bytes; 0 where unknown.
	PeakMemory int64
}

// Capture is one output stream: its first and its last bytes, which never
// overlap. Total-len(Head)-len(Tail) bytes between them were not kept.
type Capture struct {
	Head, Tail []byte
	// Total is the exact number of bytes that were written, SHA256 their hash, hex.
	Total  int64
	SHA256 string
	// Spill is the file, below the session's folder, that holds the stream, or
	// as much of it as its bound allows; "" where Head and Tail are all of it.
	Spill string
	// Handle is what [NewOutput]'s tool knows the stream by; "" is not at all.
	Handle string
}

// runner runs a command to its end. Cancelling ctx ends the command and
// everything that it started; the error then wraps context.Cause(ctx). The
// result holds what there is, also beside an error. How the command itself
// ended is never an error.
type commandRunner interface {
	Run(ctx context.Context, cmd Command) (Result, error)
}
