package shell

import (
	"context"
	"io"
	"time"
)

// Command is one shell command to run. It must not be changed while it runs.
type Command struct {
	// Script is the script for the shell, which is bash if the image has it and
	// else sh. It has at most [MaxScriptBytes] and no NUL.
	Script string
	// Args are the script's positional parameters, $1 and so on. Each has at most
	// MaxScriptBytes and no NUL.
	Args []string
	// Dir is the absolute path of the working directory in the container. Its name
	// is inside the workspace; the runner must not follow symlinks that lead
	// outside.
	Dir string
	// NoLinks forbids symlinks in Dir, because a person approved its name.
	NoLinks bool
	// Timeout limits the wall time. It is positive, or zero for a background
	// command without a limit.
	Timeout time.Duration
	// Stdout and Stderr receive the live output, each from one goroutine. They
	// never fail. They are nil for background commands only.
	Stdout, Stderr io.Writer
	// CallID is the ID of the call that runs the command.
	CallID string
}

// MaxScriptBytes is the maximum size of a script. Linux accepts arguments of at
// most 128 KiB, including the NUL (MAX_ARG_STRLEN).
const MaxScriptBytes = 128<<10 - 1

// Result is the outcome of a command. The zero value is exit code 0 without output.
type Result struct {
	// Code is the exit code, or -1 if Signal ended the command.
	Code int
	// Signal is the number of the signal that ended the command, or 0.
	Signal int
	// OOMKilled, TimedOut and Cancelled report why the command was ended, as far as
	// the sandbox knows.
	OOMKilled, TimedOut, Cancelled bool
	// PIDsLimitHit reports whether the command reached the sandbox's limit of
	// processes. Full are the directories in memory (/tmp, …) that were full when
	// the command ended.
	PIDsLimitHit bool
	Full         []string
	// DiskReserve is the number of bytes that commands must leave free on the
	// host's file system, if the command was ended because fewer were left. It is
	// a number of files (inodes) if DiskFiles is set.
	DiskReserve int64
	DiskFiles   bool
	// Stdout and Stderr are the captured output.
	Stdout, Stderr Capture
	// Killed is the number of processes that had to be killed, and Left the number
	// that could not be killed. KilledAfterExit reports whether they were still
	// running after the command itself had ended.
	Killed, Left    int
	KilledAfterExit bool
	// Wall and CPU are the wall time and the CPU time.
	Wall, CPU time.Duration
	// PeakMemory is the largest resident set in bytes, or 0 if unknown.
	PeakMemory int64
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
