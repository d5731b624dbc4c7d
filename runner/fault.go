package runner

import (
	"errors"
	"slices"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
)

// FaultKind is a kind of [Fault].
type FaultKind string

// The kinds of faults of a session.
const (
	FaultModel        FaultKind = "model"         // a request to the model failed
	FaultModelKey     FaultKind = "model_key"     // the model refuses the key
	FaultStuck        FaultKind = "stuck"         // the agent repeated a call
	FaultSandboxStart FaultKind = "sandbox_start" // the sandbox could not start
	FaultSandboxLost  FaultKind = "sandbox_lost"
	FaultLimit        FaultKind = "limit"
	FaultRecords      FaultKind = "records"     // records can't be written
	FaultNoApprover   FaultKind = "no_approver" // calls needed an approval, and no one could be asked
	FaultLateAnswer   FaultKind = "late_answer" // calls needed an approval that did not come in time
	FaultNoAnswer     FaultKind = "no_answer"   // calls needed an approval, and the answers ended
	FaultCancelled    FaultKind = "cancelled"
	FaultConflicts    FaultKind = "conflicts"   // no change was applied: the workspace changed meanwhile
	FaultNotApplied   FaultKind = "not_applied" // some changes could not be applied
	FaultLeft         FaultKind = "left"        // part of the sandbox could not be removed
)

// The kinds of faults of a user's command; see [UserCommandError].
const (
	FaultCommand     FaultKind = "command"      // the command can't be run as given
	FaultCommandLost FaultKind = "command_lost" // its sandbox was lost
	FaultReplaced    FaultKind = "replaced"     // a fresh sandbox took the place of its own
	FaultDisk        FaultKind = "disk"         // the host's disk is nearly full
	FaultUnreachable FaultKind = "unreachable"  // the session does not answer
	FaultNotLive     FaultKind = "not_live"     // no process owns the session
	FaultEndUnknown  FaultKind = "end_unknown"  // the connection ended before the command did
	FaultOther       FaultKind = "other"
)

// Fault has the facts about a failure of a session. The caller turns them into a hint
// for its users, with [Hooks].Hint.
type Fault struct {
	Kind FaultKind
	// Session is the id, Dir the directory of the records.
	Session, Dir string
	// LogFile has the details of a failed request to the model, under ErrorID, and
	// Model is its class.
	LogFile, ErrorID string
	Model            loop.ErrorClass
	// Overlay reports that the workspace is unchanged, and the changes are kept.
	Overlay bool
	// Stopped reports that a missing approval ended the session.
	Stopped bool
	// Err is the cause.
	Err error
}

// Hint returns what to do about the fault in words for any program.
func (f Fault) Hint() string {
	const allow = " Or allow the class of the call in the policy."
	switch f.Kind {
	case FaultModel:
		return modelHint(f.Model) + f.detail()
	case FaultModelKey:
		return "Check the key and what it may use." + f.detail()
	case FaultStuck:
		return "Tell the agent in the task what to do instead, or use another model."
	case FaultSandboxStart:
		if errors.Is(f.Err, sandbox.ErrNoNamespaces) {
			return "Allow this user to make user namespaces, also in the seccomp and AppArmor profiles of a container around it, or use the docker backend."
		}
		if errors.As(f.Err, new(*programs.NoExecError)) {
			return NoExecHint
		}
		if errors.As(f.Err, new(*programs.UnpackError)) {
			return UnpackHint
		}
		return "Check the engine or runtime, or choose another backend or image."
	case FaultSandboxLost:
		return "Check the engine or runtime, and run the task again. " + f.whereChangesAre()
	case FaultLimit:
		return "Raise that limit, or make the task smaller."
	case FaultRecords:
		return "Make room on the file system of " + f.Dir + "; what was written before can be read."
	case FaultNoApprover:
		return "Connect an approver." + allow
	case FaultLateAnswer:
		return "Answer while the question waits." + allow
	case FaultNoAnswer:
		return "Run it again and answer the questions." + allow
	case FaultCancelled:
		return f.whereChangesAre()
	case FaultConflicts:
		return "Compare both, and apply the rest without them."
	case FaultNotApplied:
		return "Fix that and apply the changes again: the apply continues where it stopped."
	case FaultLeft:
		return "The next session tries again."
	}
	return f.commandHint()
}

// UnpackHint is the hint for [programs.UnpackError].
const UnpackHint = "Set XDG_CACHE_HOME to a directory that you own, that no other user can write, and that has room for the programs (100 MiB)."

// NoExecHint is the hint for [programs.NoExecError].
const NoExecHint = "Mount that file system without noexec, or use directories on another one: XDG_STATE_HOME holds the sessions and the guest that they run, " +
	"XDG_CACHE_HOME images and unpacked programs."

// commandHint is Hint for the faults of a user's command.
func (f Fault) commandHint() string {
	switch f.Kind {
	case FaultCommand:
		return "Name a program, and a directory at or below " + sandbox.WorkspaceDir + "."
	case FaultCommandLost:
		return "The command is not run again."
	case FaultReplaced:
		return "Ask again: a fresh sandbox runs."
	case FaultDisk:
		return "Remove what is not needed on that disk."
	case FaultUnreachable, FaultNotLive:
		return "Name a session that runs."
	}
	return "The session's records have the details."
}

// modelHint returns what to do about a failed request to the model.
func modelHint(class loop.ErrorClass) string {
	switch class {
	case loop.ModelRateLimit:
		return "Wait and run it again, or allow more retries (max_retries)."
	case loop.ModelServer:
		return "The fault is the provider's: run it again later."
	case loop.ModelInvalidRequest:
		return "Check the model's name and its settings."
	}
	return "Check the address, the network and the model's name."
}

// detail returns a sentence that names the log with the details, or "".
func (f Fault) detail() string {
	switch {
	case f.LogFile == "":
		return ""
	case f.ErrorID == "":
		return " The detail is in " + f.LogFile + "."
	}
	return " The detail is in " + f.LogFile + " under " + f.ErrorID + "."
}

// whereChangesAre returns where the changes of a session are that did not end well.
func (f Fault) whereChangesAre() string {
	if f.Overlay {
		return "The workspace is unchanged; the changes are kept."
	}
	return "What was done is in the workspace."
}

// FaultOf returns the fault that a session ended with, as far as its last record
// tells, and whether there is one.
func FaultOf(session string, end record.SessionEnded) (Fault, bool) {
	f := Fault{Session: session, Overlay: end.Overlay != nil}
	switch end.Reason {
	case loop.StopProviderFailed:
		f.Kind = FaultModel
	case loop.StopAuth:
		f.Kind = FaultModelKey
	case loop.StopStuck:
		f.Kind = FaultStuck
	case loop.StopSandboxStart:
		f.Kind = FaultSandboxStart
	case loop.StopSandboxLost:
		f.Kind = FaultSandboxLost
	case loop.StopLimit:
		f.Kind = FaultLimit
	case loop.StopTraceUnwritable:
		f.Kind = FaultRecords
	case loop.StopCancelled:
		f.Kind = FaultCancelled
	case loop.StopNoApprover:
		f.Kind, f.Stopped = FaultNoApprover, true
	case loop.StopAnswered:
		f.Kind = faultOfAnswered(end)
	}
	return f, f.Kind != ""
}

// faultOfAnswered returns the fault of a session whose task is done, or "".
func faultOfAnswered(end record.SessionEnded) FaultKind {
	switch o := end.Overlay; {
	case slices.ContainsFunc(end.Denials, func(d record.Denial) bool { return d.Reason == "no_approver" }):
		return FaultNoApprover
	case slices.ContainsFunc(end.Denials, func(d record.Denial) bool { return d.Class == tools.ErrorConfirmationTimeout }):
		return FaultLateAnswer
	case o != nil && len(o.Failed) > 0:
		return FaultNotApplied
	case len(end.Left) > 0:
		return FaultLeft
	}
	return ""
}

// hint returns the hint of a fault in the caller's words.
func (o Options) hint(f Fault) string {
	if o.Hint == nil {
		return f.Hint()
	}
	return o.Hint(f)
}

// LimitsError reports limits that no session can have.
type LimitsError struct {
	// Session reports that they are those of all turns together, and otherwise those
	// of the sandbox.
	Session bool
	Err     error
}

// Error names the limits.
func (e *LimitsError) Error() string {
	if e.Session {
		return "session " + e.Err.Error()
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *LimitsError) Unwrap() error { return e.Err }

// RecordsError reports that the first records of a session can't be written.
type RecordsError struct {
	Dir string
	Err error
}

// Error names the directory.
func (e *RecordsError) Error() string {
	return "the records in " + e.Dir + " can't be written: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *RecordsError) Unwrap() error { return e.Err }
