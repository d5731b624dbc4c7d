package main

import (
	"errors"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

// explainError adds the hint and the exit status to an error of the libraries, whose
// facts it has; nil where it has none of its own.
func explainError(err error) *commandError {
	status, hint := exitInput, ""
	var text error
	if e, ok := errors.AsType[*sessiondir.StateError](err); ok {
		text, status, hint = e, exitConfig, "Make it a directory that you own and that nobody else can write, or set XDG_STATE_HOME to one."
	} else if e, ok := errors.AsType[*sessiondir.ChangesError](err); ok {
		text, hint = e, changesHint(e)
	} else if e, ok := errors.AsType[*runner.WorkspaceError](err); ok {
		text, hint = e, workspaceHint(e)
	} else if e, ok := errors.AsType[*trace.Error](err); ok {
		text, hint = e, traceHint(e)
	} else {
		return nil
	}
	return &commandError{Status: status, Problem: record.Problem{Cause: text.Error(), Hint: hint}, Err: err}
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
