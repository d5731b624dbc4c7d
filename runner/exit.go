package runner

import (
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
)

// Exit statuses of the command line; docs/exit-status.md is the published table.
const (
	ExitDone         = 0
	ExitFailed       = 1 // the agent or the model failed, or something was left behind
	ExitUsage        = 2
	ExitAuth         = 41
	ExitInput        = 42
	ExitSandboxStart = 44
	ExitSandboxLost  = 45
	ExitConfig       = 52
	ExitLimit        = 53
	ExitFatal        = 54 // a tool failed fatally, or the trace can't be written
	ExitUntrusted    = 55
	ExitNoApprover   = 56
	ExitConflict     = 57  // changes are not applied: their originals changed meanwhile
	ExitUnvouched    = 58  // something in the workspace was not renamed, or not looked at
	ExitInterrupted  = 130 // SIGINT; 128 plus the signal's number for others
)

// ExitStatus returns the exit status that a report stands for. Interrupted beats
// errors, errors beat success; a workspace that can't be vouched for beats
// success, a limit, and an approval that was missing.
func ExitStatus(r Report) int {
	switch r.Reason {
	case loop.StopAnswered, StopNoTurn, loop.StopLimit, loop.StopNoApprover:
		if hasUnvouched(r.Quarantined) {
			return ExitUnvouched
		}
	}
	switch r.Reason {
	case loop.StopAnswered:
		switch {
		case r.Unapproved > 0:
			return ExitNoApprover
		case r.ApplyRefused:
			return ExitConflict
		case r.Overlay != nil && len(r.Overlay.Failed) > 0:
			return ExitFailed
		case len(r.Left) > 0:
			return ExitFailed
		}
		return ExitDone
	case StopNoTurn:
		return ExitDone
	case loop.StopAuth:
		return ExitAuth
	case loop.StopSandboxStart:
		return ExitSandboxStart
	case loop.StopSandboxLost:
		return ExitSandboxLost
	case loop.StopLimit:
		return ExitLimit
	case loop.StopTraceUnwritable:
		return ExitFatal
	case loop.StopNoApprover:
		return ExitNoApprover
	case loop.StopCancelled:
		if r.Signal > 0 {
			return 128 + r.Signal
		}
		return ExitInterrupted
	}
	return ExitFailed // provider_failed, stuck
}

// Interrupted is the cause with which a run is cancelled by a signal.
type Interrupted struct {
	// Signal is its number: 2 for SIGINT, 15 for SIGTERM.
	Signal int
}

// Error names the signal.
func (i *Interrupted) Error() string {
	if i.Signal == 15 {
		return "terminated"
	}
	return "interrupted"
}

// Error is why there was no session, as people read it.
type Error struct {
	// Status is the exit status.
	Status int
	record.Problem
	// Err is the cause, where it is more than Problem says.
	Err error
}

// Error returns the cause and the hint.
func (e *Error) Error() string {
	if e.Mend == "" {
		return e.Cause
	}
	return e.Cause + ". " + e.Mend
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
