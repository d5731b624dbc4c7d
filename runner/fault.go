package runner

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
)

// FaultKind is the kind of a [Fault].
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
	FaultFormat       FaultKind = "format"      // the answer does not have the form that was asked for
	FaultUnverified   FaultKind = "unverified"  // the verification of the result failed
	FaultReplay       FaultKind = "replay"      // tools returned something else than in the replayed run
	FaultLeft         FaultKind = "left"        // part of the sandbox could not be removed

	FaultInvalidLimits FaultKind = "invalid_limits" // no session can have its limits
)

// The kinds of faults of a user's command; see [UserCommandError].
const (
	FaultCommand     FaultKind = "command"      // the command can't be run as given
	FaultCommandLost FaultKind = "command_lost" // its sandbox was lost
	FaultReplaced    FaultKind = "replaced"     // a fresh sandbox replaced the command's
	FaultDisk        FaultKind = "disk"         // the host's disk, or a directory of the sandbox, is full
	FaultUnreachable FaultKind = "unreachable"  // the session does not answer
	FaultNotLive     FaultKind = "not_live"     // no process owns the session
	FaultEndUnknown  FaultKind = "end_unknown"  // the connection ended before the command did
	FaultNotHeld     FaultKind = "not_held"     // the session belongs to a run or a server, which ends it
	FaultOther       FaultKind = "other"
)

// Fault has the facts about a session's failure. The caller turns them into a hint for its
// users, with [Hooks].Hint. [Open] returns a Fault if the limits or the records are at
// fault.
type Fault struct {
	Kind FaultKind
	// Session is the session's id, Dir the directory of its records.
	Session, Dir string
	// LogFile has the details of a failed model request, under ErrorID. Model is its
	// error class.
	LogFile, ErrorID string
	Model            loop.ErrorClass
	// Until is when the reached ceiling is free again; nil for other limits.
	Until *time.Time
	// Reserved reports that running requests hold a part of that ceiling.
	Reserved bool
	// Overlay reports that the workspace is unchanged and the changes are kept.
	Overlay bool
	// Stopped reports that a missing approval ended the session.
	Stopped bool
	Err     error
}

// Error describes the fault.
func (f Fault) Error() string {
	if f.Kind == FaultRecords {
		return "the records in " + f.Dir + " can't be written: " + f.Err.Error()
	}
	return f.Err.Error()
}

// Unwrap returns the cause.
func (f Fault) Unwrap() error { return f.Err }

// hints are the hints that depend on the kind alone.
var hints = map[FaultKind]string{
	FaultStuck:         "Tell the agent in the task what to do instead, or use another model.",
	FaultLimit:         "Raise that limit, or make the task smaller.",
	FaultInvalidLimits: "Change that limit.",
	FaultNoApprover:    "Connect an approver." + allowClass,
	FaultLateAnswer:    "Answer while the question waits." + allowClass,
	FaultNoAnswer:      "Run it again and answer the questions." + allowClass,
	FaultConflicts:     "Compare both, and apply the rest without them.",
	FaultNotApplied:    "Fix that and apply the changes again: the apply continues where it stopped.",
	FaultFormat:        "Change the task or the form, or use another model.",
	FaultUnverified:    "The end of its output is in the report and the records.",
	FaultReplay:        "Record the run again if the change is meant.",
	FaultLeft:          "The next session tries again.",
	FaultCommand:       "Name a program, and a directory at or below the workspace's path in the container.",
	FaultCommandLost:   "The command is not run again.",
	FaultReplaced:      "Ask again: a fresh sandbox runs.",
	FaultDisk:          "Remove what is not needed on that disk or in that directory.",
	FaultUnreachable:   "Name a session that runs.",
	FaultNotLive:       "Name a session that runs.",
}

const allowClass = " Or allow the class of the call in the policy."

// Hint returns what to do about the fault, in words that fit any program.
func (f Fault) Hint() string {
	switch f.Kind {
	case FaultModel:
		return modelHint(f) + f.detail()
	case FaultModelKey:
		return "Check the key and what it may use." + f.detail()
	case FaultSandboxStart:
		return startHint(f.Err)
	case FaultSandboxLost:
		return "Check the engine or runtime, and run the task again. " + f.whereChangesAre()
	case FaultLimit:
		if f.Until != nil && f.Reserved {
			return "What those requests don't use is free when they have ended, and all of it at " + f.Until.UTC().Format("2006-01-02 15:04 UTC") + ". Wait, or raise that limit."
		}
		if f.Until != nil {
			return "It is free again at " + f.Until.UTC().Format("2006-01-02 15:04 UTC") + ". Wait until then, or raise that limit."
		}
	case FaultRecords:
		if e, ok := errors.AsType[*ledger.FileError](f.Err); ok {
			return e.Hint()
		}
		return "Make room on the file system of " + f.Dir + "; what was written before can be read."
	case FaultCancelled:
		return f.whereChangesAre()
	}
	return cmp.Or(hints[f.Kind], "The session's records have the details.")
}

func startHint(err error) string {
	switch {
	case errors.As(err, new(*sandbox.MountError)):
		return mountHint
	case errors.As(err, new(*images.UserError)):
		return "Choose another user of commands, or another image."
	case errors.Is(err, sandbox.ErrNoNamespaces):
		return "Use the backend gvisor with isolation process, which needs no namespaces. Or allow this user to make user namespaces, also in the seccomp and AppArmor profiles of a container around it, or use the docker backend. In a chroot, run Caisson outside it."
	}
	return cmp.Or(ProgramHint(err), "Check the engine or runtime, or choose another backend or image.")
}

const mountHint = "Change the mount or the workspace's path in the container, or use another image."

// ProgramHint returns what to do about a [programs.NoExecError] or [programs.UnpackError],
// and "" for any other error.
func ProgramHint(err error) string {
	switch {
	case errors.As(err, new(*programs.NoExecError)):
		return "Mount that file system without noexec, or use directories on another one: XDG_STATE_HOME holds the sessions and the guest that they run, " +
			"XDG_CACHE_HOME images and unpacked programs."
	case errors.As(err, new(*programs.UnpackError)):
		return "Set XDG_CACHE_HOME to a directory that you own, that no other user can write, and that has room for the programs (100 MiB)."
	}
	return ""
}

func modelHint(f Fault) string {
	switch f.Model {
	case loop.ModelRateLimit:
		if errors.Is(f.Err, loop.ErrQuota) {
			return "Waiting does not help: check the account's plan and billing, or use another model."
		}
		return "Wait and run it again, or allow more retries (max_retries)."
	case loop.ModelServer:
		return "The fault is the provider's: run it again later."
	case loop.ModelInvalidRequest:
		return "Check the model's name and its settings."
	}
	return "Check the address, the network and the model's name."
}

func (f Fault) detail() string {
	switch {
	case f.LogFile == "":
		return ""
	case f.ErrorID == "":
		return " The detail is in " + f.LogFile + "."
	}
	return " The detail is in " + f.LogFile + " under " + f.ErrorID + "."
}

func (f Fault) whereChangesAre() string {
	if f.Overlay {
		return "The workspace is unchanged; the changes are kept."
	}
	return "What was done is in the workspace."
}

// faultKinds maps the reason of a session's end to the kind of its fault.
var faultKinds = map[loop.StopReason]FaultKind{
	loop.StopProviderFailed:  FaultModel,
	loop.StopAuth:            FaultModelKey,
	loop.StopStuck:           FaultStuck,
	loop.StopSandboxStart:    FaultSandboxStart,
	loop.StopSandboxLost:     FaultSandboxLost,
	loop.StopLimit:           FaultLimit,
	loop.StopTraceUnwritable: FaultRecords,
	loop.StopCancelled:       FaultCancelled,
	loop.StopNoApprover:      FaultNoApprover,
}

// FaultOf returns the fault of an ended session, as far as its last record tells. Its Kind
// is "" if there is none.
func FaultOf(session string, end record.SessionEnded) Fault {
	f := Fault{Kind: faultKinds[end.Reason], Session: session, Overlay: end.Overlay != nil, Stopped: end.Reason == loop.StopNoApprover}
	if end.Limit != nil {
		f.Until, f.Reserved = end.Limit.Until, end.Limit.Reserved > 0
	}
	if end.Reason == loop.StopAnswered || end.Reason == StopNoTurn {
		f.Kind = faultOfDone(end)
	}
	return f
}

// faultOfDone returns the fault of a session that answered or had no turn, or "".
func faultOfDone(end record.SessionEnded) FaultKind {
	switch o := end.Overlay; {
	case slices.ContainsFunc(end.Denials, func(d record.Denial) bool { return d.Reason == "no_approver" }):
		return FaultNoApprover
	case slices.ContainsFunc(end.Denials, func(d record.Denial) bool { return d.Class == tools.ErrorConfirmationTimeout }):
		return FaultLateAnswer
	case len(end.AnswerProblems) > 0:
		return FaultFormat
	case end.Verification != nil && !end.Verification.Passed:
		return FaultUnverified
	case o != nil && len(o.Failed) > 0:
		return FaultNotApplied
	case len(end.Left) > 0:
		return FaultLeft
	}
	return ""
}

func (o Options) hint(f Fault) string {
	if o.Hint == nil {
		return f.Hint()
	}
	return o.Hint(f)
}
