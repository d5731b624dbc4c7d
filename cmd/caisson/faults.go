package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"strings"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/fleet"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
)

// commandError is an error with its exit status and hint.
type commandError struct {
	Status int
	record.Problem
	// Err is the underlying error, or nil if Problem describes all of it.
	Err error
}

// Error returns the cause. reportError adds the hint.
func (e *commandError) Error() string { return e.Cause }

func (e *commandError) Unwrap() error { return e.Err }

// newFailure returns an error with an exit status and a hint. err may be nil unless
// cause is "": then its text is the cause.
func newFailure(status int, err error, cause, hint string) *commandError {
	if cause == "" {
		cause = err.Error()
	}
	return &commandError{Status: status, Problem: record.Problem{Cause: cause, Hint: hint}, Err: err}
}

// usageError is a command line that can't be understood.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

func newUsageError(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// fault is a kind of error, with its exit status and hint.
type fault struct {
	match  func(err error) bool
	status int
	hint   string
}

// is and as match errors by value and by type.
func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

func as[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// explain returns err with the status and hint of the first fault that matches, or err
// itself.
func explain(err error, faults []fault) error {
	for _, f := range faults {
		if f.match(err) {
			return newFailure(f.status, err, "", f.hint)
		}
	}
	return err
}

// startFaults are the reasons why a sandbox can't start.
var startFaults = []fault{
	{as[*programs.NotFoundError], exitSandboxStart, ""}, // startHint adds hints about programs
	{as[*sandbox.MountError], exitInput, "Change the mount (mounts, --mount) or the workspace's path (workdir, --workdir), or use another image."},
	{as[*images.UserError], exitInput, "Choose another user (user, --user), or another image."},
	{is(sandbox.ErrNoNamespaces), exitSandboxStart, "gvisor works without namespaces, unless requirements refuse that: --backend gvisor --isolation process. " + namespacesHint},
	{is(sandbox.ErrUnhealthy), exitSandboxStart, "Fix the service or its health check, give it more time with service.start_time, or run without it: --service none."},
	{as[*programs.NoExecError], exitSandboxStart, ""},
	{as[*programs.UnpackError], exitSandboxStart, ""},
	{is(sandbox.ErrUnavailable, sandbox.ErrNotFound, sandbox.ErrUnsupported, sandbox.ErrInvalid, tools.ErrSandboxStart), exitSandboxStart, ""},
}

var imageFaults = []fault{
	{is(images.ErrUnauthorized), exitAuth, "Log in with docker login. Caisson uses its credentials."},
	{is(images.ErrUnreachable), exitFailed, "Check the name, the network and the proxies. caisson images ls lists the images that need no network."},
	{is(images.ErrDigest), exitFailed, "Try again. If it happens again, the registry or something on the way changes the content: ask who runs it."},
	{is(images.ErrRefused), exitInput, "Use an image that you trust, or ask who made this one."},
	{is(images.ErrInUse), exitFailed, "End the session that uses it. caisson sandbox ls shows it."},
	{is(images.ErrNotFound), exitInput, "Check the name or path. caisson images ls lists the images in the cache."},
	{is(images.ErrUnsupported), exitInput, "Use an image for this machine, from a source that works here: see docs/images.md."},
	{is(images.ErrInvalid), exitInput, "Images are host, rootfs:DIR, oci-layout:DIR, docker-archive:FILE, build:DIR, or a name such as debian:bookworm-slim."},
}

var ledgerFaults = []fault{
	{is(batch.ErrInUse), exitInput, "Wait until that batch ends, or choose another directory with --out."},
	{as[*batch.TrialError], exitInput, "Bring back what is missing; or remove the directory of that trial, and it runs again."},
	{is(batch.ErrDamagedSpec), exitInput, "Bring back " + batch.SpecFile + ", or remove it and run the same command: it keeps the finished trials."},
	{is(batch.ErrForeign), exitInput, "Choose another directory with --out."},
	{as[*batch.NameError], exitInput, "Choose another directory with --out."},
	{as[*batch.MismatchError], exitInput, "Choose another directory with --out."},
}

// fleetFaults are the reasons why a machine can't take part in a batch.
var fleetFaults = []fault{
	{as[*batch.MismatchError], exitInput, "Choose another place with --results."},
	{as[*fleet.DamagedError], exitFailed, "Remove these objects from --results and run the same command again, which runs their trials again."},
	{as[*fleet.TaskError], exitInput, "Workers need the tasks of the coordinator: share its directory, or name a copy of it as PATH."},
}

// hints has hints by the reason of an error or the advice of a finding. "%s" stands for
// the subject.
var hints = map[any]string{
	// A session's records can't be read. %s is a session that matches.
	trace.NoSessions:   "caisson run makes one.",
	trace.NoSession:    "caisson trace ls lists them.",
	trace.ManySessions: "Write more of the id: %s is one of them.",
	trace.NotListed:    "Set XDG_STATE_HOME to the directory that has them.",
	trace.NoRecords:    "It ended before it wrote any, or they were removed.",
	trace.NotExported:  "caisson trace show shows what there is.",
	trace.NotAttested:  "caisson trace verify shows whether its records were changed.",
	trace.Unreadable:   "Name a session, its directory or its trace.jsonl.",

	// A session's changes can't be opened. %s is a session that matches, or the state
	// directory.
	sessiondir.NoChangesHere: "caisson run --mode overlay keeps changes; --workspace names another directory.",
	sessiondir.NoSession:     "The end of a run shows its session. All of them are in %s/sessions.",
	sessiondir.ManySessions:  "Write more of the id: %s is one of them.",
	sessiondir.NoneKept:      "If its directory has a workspace.patch, that shows what can be shown; caisson run --mode overlay keeps changes.",
	sessiondir.Unreadable:    "Look at its directory below %s.",
	sessiondir.ChangesGone:   "workspace.patch in the session's directory still shows their text.",

	// A session can't be resumed. %s is the session.
	runner.ResumeDamaged:        "caisson trace verify %s shows where. Start a new session with the task.",
	runner.ResumeOtherWorkspace: "Name the session's own directory with --workspace, or start a new session.",
	runner.ResumeOtherMode:      "Leave out --mode, --apply, --patch-out and --workdir: the session keeps its own.",
	runner.ResumeOtherTarget:    "Leave out --mode, --apply, --patch-out and --workdir: the session keeps its own.",
	runner.ResumePartlyApplied:  "Apply the rest with caisson apply %s, or discard it. Then resume the session.",
	runner.ResumeApplying:       "Wait until its changes are applied. Then resume the session.",
	runner.ResumeNoModel:        "Name a session of caisson run or caisson chat.",
	runner.ResumeNothing:        "Give it a task: caisson run --resume %s \"TASK\".",
	runner.ResumeNoMessage:      "Give it a task: caisson run --resume %s \"TASK\".",

	// Faults of a session. %s is the session.
	runner.FaultSandboxLost: "Check the engine or runtime (caisson doctor), and run the task again. ",
	runner.FaultNoApprover:  "To be asked, run with standard input and standard error on a terminal, and without --json.",
	runner.FaultLateAnswer:  "Answer while the question waits. --confirm-timeout sets how long that is.",
	runner.FaultNoAnswer:    "Run it again and answer the questions; Ctrl-D ends them.",
	runner.FaultConflicts:   "caisson diff %s shows both; caisson apply --skip-conflicts %s applies the rest.",
	runner.FaultNotApplied:  "Fix that and run caisson apply %s, which continues where it stopped.",
	runner.FaultLeft:        "The next caisson run tries again; caisson doctor checks the engine or runtime.",
	runner.FaultCommandLost: "The command is not run again; caisson sandbox ls lists what runs.",
	runner.FaultUnreachable: "caisson sandbox ls lists what runs.",
	runner.FaultNotLive:     "caisson sandbox ls lists what runs.",

	// Findings of the doctor. %s is their subject.
	doctor.AdviseOtherBackend:    "Don't run anything on this backend here: choose another with --backend, and report this.",
	doctor.AdviseRuncUpdate:      "Install runc 1.2.8, 1.3.3, 1.4.0 or newer, unless your distribution has fixed this one; until then use images that you trust, or --backend gvisor.",
	doctor.AdviseNamespaces:      namespacesHint,
	doctor.AdviseOverlay:         "As root: modprobe overlay; --mode bind needs none.",
	doctor.AdviseOtherImage:      "Use an image that has what commands need: --image, or image in the configuration.",
	doctor.AdviseImage:           "Name an existing image: --image, or image in the configuration.",
	doctor.AdvisePull:            "caisson images pull %s fetches it now.",
	doctor.AdvisePrune:           "caisson images prune --all removes the images that no session uses; or set XDG_CACHE_HOME to a directory on a larger disk.",
	doctor.AdviseListSandboxes:   "caisson sandbox ls shows the cause.",
	doctor.AdviseCollect:         "caisson sandbox gc removes it; so does the next run.",
	doctor.AdviseCollectLater:    "caisson sandbox gc removes the rest once this caisson has ended.",
	doctor.AdviseTrustAgain:      "Read the copy; caisson trust stores again what you trust.",
	doctor.AdviseUntrust:         "caisson untrust %s forgets it; caisson trust stores its present settings.",
	doctor.AdviseRevokeTool:      "caisson approvals revoke --tool %s removes it.",
	doctor.AdviseRevokeDenied:    "Change the policy, or revoke it with caisson approvals revoke.",
	doctor.AdviseRevoke:          "Revoke it with caisson approvals revoke.",
	doctor.AdviseRevokeDirectory: "caisson approvals revoke --workspace %s --all removes them.",
}

// hintFor returns the hint for a kind of fault, or "".
func hintFor(kind any, subject string) string {
	return strings.ReplaceAll(hints[kind], "%s", subject)
}

const namespacesHint = "For namespaces in a container, start it with docker run --security-opt seccomp=unconfined (and apparmor=unconfined, if AppArmor confines it) " +
	"and run Caisson as an ordinary user; runc needs --security-opt systempaths=unconfined too. Elsewhere allow this user to make user namespaces, or use the docker backend. In a chroot, run Caisson outside it."

// describeError turns any error into a message with a hint and an exit status.
func describeError(err error) *commandError {
	if e, ok := errors.AsType[*commandError](err); ok {
		return e
	}
	if e := explainLibrary(err); e != nil {
		return e
	}
	if u, ok := errors.AsType[*usageError](err); ok {
		return newFailure(exitUsage, nil, u.Error(), "")
	}
	if c, ok := errors.AsType[*config.Error](err); ok {
		status := exitConfig
		if errors.As(err, new(*runner.MountError)) {
			status = exitInput // the setting is valid, but not the directory
		}
		return newFailure(status, err, c.Error(), makeSentence(c.Hint))
	}
	if u, ok := errors.AsType[*untrustedError](err); ok {
		return newFailure(exitUntrusted, err, "the workspace "+u.path+" is not trusted, and --require-trust asks for it ("+u.why+")",
			"Look at caisson trust --dry-run "+u.path+", then run caisson trust.")
	}
	if e, ok := errors.AsType[*commandError](explain(err, startFaults)); ok {
		e.Hint = startHint(err)
		return e
	}
	return newFailure(exitFailed, err, "", "")
}

// explainLibrary explains an error whose facts decide its status and hint. It returns
// nil for any other.
func explainLibrary(err error) *commandError {
	if e, ok := errors.AsType[*state.DirError](err); ok {
		return newFailure(exitConfig, err, e.Error(), "Make it a directory that you own and no one else can write, or set XDG_STATE_HOME to one.")
	}
	if e, ok := errors.AsType[*ledger.FileError](err); ok {
		return newFailure(exitConfig, err, e.Error(), e.Hint())
	}
	if e, ok := errors.AsType[*sessiondir.ChangesError](err); ok {
		return newFailure(exitInput, err, e.Error(), hintFor(e.Reason, firstOr(e.Matches, e.StateDir)))
	}
	if e, ok := errors.AsType[*runner.WorkspaceError](err); ok {
		return newFailure(exitInput, err, e.Error(), workspaceHint(e))
	}
	if e, ok := errors.AsType[*trace.Error](err); ok {
		if e.Reason == trace.Unreadable && errors.Is(e.Err, fs.ErrPermission) {
			return newFailure(exitInput, err, e.Error(), "Run caisson as the user who owns them.")
		}
		return newFailure(exitInput, err, e.Error(), hintFor(e.Reason, firstOr(e.Matches, "")))
	}
	if e, ok := errors.AsType[runner.Fault](err); ok {
		return newFailure(faultStatus(e.Kind), err, e.Error(), sessionHint(e))
	}
	if e, ok := errors.AsType[*runner.UserCommandError](err); ok {
		return newFailure(faultStatus(e.Kind), err, e.Error(), cmp.Or(e.Hint, sessionHint(runner.Fault{Kind: e.Kind})))
	}
	resume, ok := errors.AsType[*runner.ResumeError](err)
	switch {
	case errors.Is(err, sessiondir.ErrAlive):
		return newFailure(exitInput, err, "", "Wait until it ends, or end it. caisson sandbox ls lists what runs.")
	case errors.Is(err, sessiondir.ErrNoRecords):
		return newFailure(exitInput, err, "", "caisson trace ls lists sessions. Old ones lose their records, and can't be resumed.")
	case ok:
		return newFailure(exitInput, err, "", hintFor(resume.Reason, resume.Session))
	}
	return nil
}

func firstOr(list []string, otherwise string) string {
	if len(list) > 0 {
		return list[0]
	}
	return otherwise
}

// makeSentence turns a hint of the configuration into a sentence. "" stays "".
func makeSentence(s string) string {
	if s == "" {
		return ""
	}
	s = strings.ToUpper(s[:1]) + s[1:]
	if strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

// sessionHint returns the hint for a session's fault, for users of a command line.
func sessionHint(f runner.Fault) string {
	hint, place := hintFor(f.Kind, f.Session), "The changes are in the workspace."
	if f.Overlay {
		place = "The workspace is unchanged; caisson diff shows the changes."
	}
	switch f.Kind {
	case runner.FaultSandboxStart:
		return startHint(f.Err)
	case runner.FaultSandboxLost, runner.FaultCancelled:
		return hint + place
	case runner.FaultNoApprover, runner.FaultLateAnswer, runner.FaultNoAnswer:
		hint += " Or allow the class of the call with --policy, or a command for good with caisson approvals trust."
		if f.Stopped {
			hint += " --on-prompt deny continues without it."
		}
	}
	return cmp.Or(hint, f.Hint())
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

// startHint returns the hint for a sandbox that could not start.
func startHint(err error) string {
	if e, ok := errors.AsType[*commandError](err); ok {
		return e.Hint
	}
	if e, ok := errors.AsType[*commandError](explain(err, startFaults)); ok && e.Hint != "" {
		return e.Hint
	}
	if e, ok := errors.AsType[*programs.NotFoundError](err); ok {
		return installHint(e.Name)
	}
	if e, ok := errors.AsType[*images.BuildError](err); ok {
		return buildHint(e)
	}
	return cmp.Or(runner.ProgramHint(err), "caisson doctor shows what this machine can run; --backend and --image choose another sandbox.")
}

func buildHint(e *images.BuildError) string {
	switch {
	case len(e.Refused) > 0:
		return "Allow the hosts in egress.allow, and name their networks in egress.private if they are not public; or fix the Dockerfile."
	case !e.Network:
		return "Fix the Dockerfile, or give its commands a network: --build-network public (images.build_network)."
	}
	return "Fix the Dockerfile."
}

// imageFailure adds the status and hint to an error of package images.
func imageFailure(err error) error {
	if err == nil || as[*commandError](err) || explainLibrary(err) != nil {
		return err
	}
	if e, ok := errors.AsType[*images.BuildError](err); ok {
		return newFailure(exitInput, err, "", buildHint(e))
	}
	return explain(err, imageFaults)
}

func workspaceHint(e *runner.WorkspaceError) string {
	switch {
	case e.Op == "resolve", e.Op == "open":
		return "Name an existing directory with --workspace."
	case e.Op == "own":
		return "Run caisson as its owner or as root, or own new files yourself with --caller-owns-files."
	case e.Op == "accept" && as[*runner.SystemDirError](e.Err):
		return "Give the task a directory of its own with --workspace, or accept this one with the setting accept_system_workspace."
	case e.Op == "accept":
		return "Give the task a directory of its own with --workspace."
	}
	return "Name another directory with --workspace."
}

const modulePath = "github.com/caisson-run/caisson"

// installHint returns how to install a missing program, the way this one was installed.
func installHint(name string) string {
	install, ours := map[string]string{"caisson-guest": modulePath + "/cmd/caisson-guest@", "runsc": modulePath + "/sandbox/oci/runsc@latest"}[name]
	if !ours {
		return "Install it, or name it under programs: in the configuration."
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		if name == "caisson-guest" {
			install += info.Main.Version
		}
		return "Install it beside caisson: CGO_ENABLED=0 go install " + install
	}
	return "Build it with make build, keep it beside caisson, or name it under programs: in the configuration."
}
