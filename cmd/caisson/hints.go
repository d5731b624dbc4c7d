package main

import (
	"cmp"
	"errors"
	"io/fs"

	"github.com/caisson-run/caisson/cmd/caisson/internal/resumed"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// explainError adds the hint and the exit status to an error of the libraries, whose
// facts it has; nil where it has none of its own.
func explainError(err error) *commandError {
	status, hint := exitInput, ""
	var text error
	if e, ok := errors.AsType[*sessiondir.StateError](err); ok {
		text, status, hint = e, exitConfig, "Make it a directory that you own and no one else can write, or set XDG_STATE_HOME to one."
	} else if e, ok := errors.AsType[*ledger.FileError](err); ok {
		text, status, hint = e, exitConfig, e.Hint()
	} else if e, ok := errors.AsType[*sessiondir.ChangesError](err); ok {
		text, hint = e, changesHint(e)
	} else if e, ok := errors.AsType[*runner.WorkspaceError](err); ok {
		text, hint = e, workspaceHint(e)
	} else if e, ok := errors.AsType[*trace.Error](err); ok {
		text, hint = e, traceHint(e)
	} else if e, ok := errors.AsType[runner.Fault](err); ok {
		text, status, hint = e, faultStatus(e.Kind), sessionHint(e)
	} else if e, ok := errors.AsType[*runner.UserCommandError](err); ok {
		text, status, hint = e, faultStatus(e.Kind), cmp.Or(e.Hint, sessionHint(runner.Fault{Kind: e.Kind}))
	} else if h := resumed.Hint(err); h != "" {
		text, hint = err, h
	} else if errors.Is(err, overlay.ErrUnsupported) {
		text, status, hint = err, exitSandboxStart, "Use --mode bind, on a copy of the directory if need be."
	} else {
		return nil
	}
	return &commandError{Status: status, Problem: record.Problem{Cause: text.Error(), Hint: hint}, Err: err}
}

// namespacesHint is the hint for [sandbox.ErrNoNamespaces].
const namespacesHint = "In a container, start it with docker run --security-opt seccomp=unconfined (and apparmor=unconfined, where AppArmor confines it) " +
	"and run Caisson as an ordinary user; runc needs --security-opt systempaths=unconfined too. Elsewhere allow this user to make user namespaces, or use the docker backend."

// sessionHint returns what to do about a fault of a session, at a command line.
func sessionHint(f runner.Fault) string {
	const allow = " Or allow the class of the call with --policy, or a command for good with caisson approvals trust."
	switch f.Kind {
	case runner.FaultSandboxStart:
		return startHint(f.Err)
	case runner.FaultSandboxLost:
		return "Check the engine or runtime (caisson doctor), and run the task again. " + changesPlace(f)
	case runner.FaultCancelled:
		return changesPlace(f)
	case runner.FaultNoApprover:
		return "To be asked, run with standard input and standard error on a terminal, and without --json." + allow + withoutApprover(f)
	case runner.FaultLateAnswer:
		return "Answer while the question waits. --confirm-timeout sets how long that is." + allow + withoutApprover(f)
	case runner.FaultNoAnswer:
		return "Run it again and answer the questions; Ctrl-D ends them." + allow + withoutApprover(f)
	case runner.FaultConflicts:
		return "caisson diff " + f.Session + " shows both; caisson apply --skip-conflicts " + f.Session + " applies the rest."
	case runner.FaultNotApplied:
		return "Fix that and run caisson apply " + f.Session + ": it goes on where it stopped."
	case runner.FaultLeft:
		return "The next caisson run tries again; caisson doctor checks the engine or runtime."
	case runner.FaultCommandLost:
		return "The command is not run again; caisson sandbox ls lists what runs."
	case runner.FaultUnreachable, runner.FaultNotLive:
		return "caisson sandbox ls lists what runs."
	}
	return f.Hint()
}

// startHint returns what to do about a sandbox that could not start.
func startHint(err error) string {
	if e, ok := errors.AsType[*commandError](err); ok {
		return e.Hint
	}
	switch {
	case errors.As(err, new(*sandbox.MountError)):
		return "Change the mount (mounts, --mount) or the workspace's path (workdir, --workdir), or use another image."
	case errors.As(err, new(*images.UserError)):
		return "Choose another user (user, --user), or another image."
	case errors.Is(err, sandbox.ErrNoNamespaces):
		return namespacesHint
	}
	if errors.Is(err, sandbox.ErrUnhealthy) {
		return "Fix the service or its health check, give it longer with service.start_time, or run without it: --service none."
	}
	return cmp.Or(runner.ProgramHint(err), "caisson doctor shows what this machine can run; --backend and --image choose another sandbox.")
}

// changesPlace returns where the changes of a session are that did not end well.
func changesPlace(f runner.Fault) string {
	if f.Overlay {
		return "The workspace is unchanged; caisson diff shows what was done."
	}
	return "What was done is in the workspace."
}

// withoutApprover names the flag with which a missing approval does not end a session.
func withoutApprover(f runner.Fault) string {
	if f.Stopped {
		return " --on-prompt deny goes on without it."
	}
	return ""
}

// faultStatus returns the exit status for a session that can't be opened, or a user's
// command that was not run.
func faultStatus(kind runner.FaultKind) int {
	switch kind {
	case runner.FaultInvalidLimits:
		return exitConfig
	case runner.FaultRecords:
		return exitFatal
	case runner.FaultSandboxStart:
		return exitSandboxStart
	case runner.FaultCommandLost, runner.FaultReplaced, runner.FaultEndUnknown:
		return exitSandboxLost
	case runner.FaultCommand, runner.FaultUnreachable, runner.FaultNotLive, runner.FaultNotHeld:
		return exitInput
	}
	return exitFailed
}

// changesHint returns what to do where the changes of a session can't be opened.
func changesHint(e *sessiondir.ChangesError) string {
	switch e.Reason {
	case sessiondir.NoChangesHere:
		return "caisson run --mode overlay keeps changes; --workspace names another directory."
	case sessiondir.NoSession:
		return "The end of a run names its session; the directories of " + e.StateDir + "/sessions are all of them."
	case sessiondir.ManySessions:
		return "Write more of the id: " + e.Matches[0] + " is one of them."
	case sessiondir.NoneKept:
		return "workspace.patch in its directory shows what can be shown; caisson run --mode overlay keeps changes."
	case sessiondir.Unreadable:
		return "Look at its directory below " + e.StateDir + "."
	}
	return "workspace.patch in the session's directory still shows the text of them."
}

// traceHint returns what to do where the records of a session can't be read.
func traceHint(e *trace.Error) string {
	switch e.Reason {
	case trace.NoSessions:
		return "caisson run makes one."
	case trace.NoSession:
		return "caisson trace ls lists them."
	case trace.ManySessions:
		return "Write more of the id: " + e.Matches[0] + " is one of them."
	case trace.NotListed:
		return "Set XDG_STATE_HOME to the directory that has them."
	case trace.NoRecords:
		return "It was ended before it wrote any, or they were removed."
	case trace.NotExported:
		return "caisson trace show shows what there is."
	}
	if errors.Is(e.Err, fs.ErrPermission) {
		return "Run caisson as the user who owns them."
	}
	return "Name a session, its directory or its trace.jsonl."
}

// workspaceHint returns what to do where a workspace can't be used.
func workspaceHint(e *runner.WorkspaceError) string {
	switch e.Op {
	case "resolve", "open":
		return "Name an existing directory with --workspace."
	case "own":
		return "Run caisson as its owner or as root, or own new files yourself with --caller-owns-files."
	case "accept":
		if errors.As(e.Err, new(*runner.SystemDirError)) {
			return "Name a directory of its own for the task with --workspace, or accept this one with --accept-system-workspace."
		}
		return "Name a directory of its own for the task with --workspace."
	}
	return "Name another directory with --workspace."
}
