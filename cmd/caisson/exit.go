package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/resumed"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Exit statuses; docs/exit-status.md is the published table.
const (
	exitDone         = runner.OutcomeDone
	exitFailed       = runner.OutcomeFailed // the agent or the model failed, or something was left behind
	exitUsage        = 2
	exitAuth         = runner.OutcomeAuth
	exitInput        = runner.OutcomeInput
	exitSandboxStart = runner.OutcomeSandboxStart
	exitSandboxLost  = runner.OutcomeSandboxLost
	exitConfig       = 52
	exitLimit        = runner.OutcomeLimit
	exitFatal        = runner.OutcomeFatal // a tool failed fatally, or the trace can't be written
	exitUntrusted    = 55
	exitNoApprover   = runner.OutcomeNoApprover
	exitConflict     = runner.OutcomeConflict  // changes are not applied: their originals changed meanwhile
	exitUnvouched    = runner.OutcomeUnvouched // something in the workspace was not renamed, or not looked at
	exitUnverified   = runner.OutcomeUnverified
	exitFormat       = runner.OutcomeFormat
	exitInterrupted  = runner.OutcomeInterrupted // SIGINT; 128 plus the signal's number for others
)

// commandError is an error with its exit status and its hint.
type commandError struct {
	Status int
	record.Problem
	// Err is the cause, where it is more than Problem describes.
	Err error
}

// Error returns the cause without the hint, which [reportError] adds.
func (e *commandError) Error() string { return e.Cause }

// Unwrap returns the cause.
func (e *commandError) Unwrap() error { return e.Err }

// exitError ends the program with a status. What there is to tell was told.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// exitWith returns the error that ends the program with a status, nil for 0.
func exitWith(status int) error {
	if status == exitDone {
		return nil
	}
	return &exitError{status}
}

// interruption returns the error that ends an interrupted command as its signal
// would, nil where ctx was not interrupted.
func interruption(ctx context.Context) error {
	if i, ok := errors.AsType[*runner.Interrupted](context.Cause(ctx)); ok {
		return exitWith(128 + i.Signal)
	}
	return nil
}

// commandTraits are the parts of a command's work that have exit statuses of their own.
type commandTraits uint

const (
	usesConfig     commandTraits = 1 << iota // reads the configuration or the state directory
	usesInput                                // reads what the user names: a workspace, a task, a file
	startsSandbox                            // starts a sandbox
	runsCommands                             // runs commands in a sandbox, with records
	decidesCalls                             // runs calls of tools under the policy and the limits
	asksModel                                // has a model, and sends its records to a reader
	appliesChanges                           // brings changes into a workspace
	interruptible                            // has something to end when it is interrupted
)

// exitMeanings are the exit statuses as help describes them, and the commands that have
// them. Success and usage are those of every command.
var exitMeanings = map[int]struct {
	text   string
	traits commandTraits
}{
	exitDone:         {text: "done"},
	exitFailed:       {"the agent or the model failed, or something was left behind", decidesCalls},
	exitUsage:        {text: "usage"},
	exitAuth:         {"authentication", asksModel},
	exitInput:        {"the workspace, the task or a file can't be used", usesInput},
	exitSandboxStart: {"the sandbox could not start", startsSandbox},
	exitSandboxLost:  {"the sandbox was lost", runsCommands},
	exitConfig:       {"configuration", usesConfig},
	exitLimit:        {"a limit was reached", decidesCalls},
	exitFatal:        {"a record could not be written", runsCommands},
	exitConflict:     {"nothing was applied: the workspace changed meanwhile", appliesChanges},
	exitUnvouched:    {"the workspace could not be vouched for: read the notices before you use git or hg there", decidesCalls},
	exitUntrusted:    {"the workspace is not trusted (--require-trust)", decidesCalls},
	exitNoApprover:   {"something needed an approval that it didn't get", decidesCalls},
	exitInterrupted:  {"interrupted (129: hang-up, 143: terminated)", interruptible},
	exitPipe:         {"the reader of standard output went away", asksModel},
}

// exitHelp returns the end of a command's help: its exit statuses, those with a meaning
// of the command's own among them. An empty meaning leaves one out.
func exitHelp(own map[int]string, traits commandTraits) string {
	meanings := map[int]string{}
	for status, m := range exitMeanings {
		if m.traits == 0 || m.traits&traits != 0 {
			meanings[status] = m.text
		}
	}
	maps.Copy(meanings, own)
	var b strings.Builder
	b.WriteString("\nExit status:\n")
	for _, status := range slices.Sorted(maps.Keys(meanings)) {
		if meanings[status] != "" {
			fmt.Fprintf(&b, "  %-5d%s\n", status, meanings[status])
		}
	}
	return b.String()
}

// usageError is a command line that can't be understood.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// describeError turns any error into what people read and its exit status.
func describeError(err error) *commandError {
	if e, ok := errors.AsType[*commandError](err); ok {
		return e
	}
	if e := explainError(err); e != nil {
		return e
	}
	if u, ok := errors.AsType[*usageError](err); ok {
		return &commandError{Status: exitUsage, Problem: record.Problem{Cause: u.Error()}}
	}
	if c, ok := errors.AsType[*config.Error](err); ok {
		status := exitConfig
		if errors.As(err, new(*runner.MountError)) {
			status = exitInput // the setting is one, the directory can't be used
		}
		return &commandError{Status: status, Problem: record.Problem{Cause: c.Error(), Hint: makeSentence(c.Hint)}, Err: err}
	}
	if u, ok := errors.AsType[*untrustedError](err); ok {
		return &commandError{Status: exitUntrusted, Err: err, Problem: record.Problem{
			Cause: "the workspace " + u.path + " is not trusted, and --require-trust asks for it (" + u.why + ")",
			Hint:  "Look at caisson trust --dry-run " + u.path + ", then run caisson trust.",
		}}
	}
	problem := record.Problem{Cause: err.Error()}
	switch missing, ok := errors.AsType[*programs.NotFoundError](err); {
	case ok:
		problem.Hint = installHint(missing.Name)
		return &commandError{Status: exitSandboxStart, Problem: problem, Err: err}
	case errors.As(err, new(*sandbox.MountError)), errors.As(err, new(*images.UserError)):
		return &commandError{Status: exitInput, Problem: record.Problem{Cause: err.Error(), Hint: startHint(err)}, Err: err}
	case errors.Is(err, sandbox.ErrNoNamespaces):
		return &commandError{Status: exitSandboxStart, Problem: record.Problem{Cause: err.Error(), Hint: namespacesHint}, Err: err}
	case errors.As(err, new(*programs.NoExecError)), errors.As(err, new(*programs.UnpackError)):
		return &commandError{Status: exitSandboxStart, Problem: record.Problem{Cause: err.Error(), Hint: startHint(err)}, Err: err}
	case errors.Is(err, sandbox.ErrUnavailable), errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrUnsupported),
		errors.Is(err, sandbox.ErrInvalid), errors.Is(err, tools.ErrSandboxStart):
		problem.Hint = "caisson doctor shows what this machine can run; --backend chooses another sandbox."
		return &commandError{Status: exitSandboxStart, Problem: problem, Err: err}
	}
	return &commandError{Status: exitFailed, Problem: problem, Err: err}
}

// makeSentence turns a hint of the configuration into a sentence.
func makeSentence(s string) string {
	if s == "" {
		return "Fix it there."
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

// reportError prints a failure on standard error, as one paragraph.
func reportError(a *app, e *commandError) {
	cause, _ := tools.Display(safeurl.InText(e.Cause))
	hint, _ := tools.Display(safeurl.InText(e.Hint))
	a.printLines(strings.TrimRight(fmt.Sprintf("caisson: %s. %s", strings.TrimRight(cause, ".\n "), hint), " "))
}

// printLines prints lines, which must be safe, on standard error. On a terminal they are
// broken at blanks.
func (a *app) printLines(lines ...string) {
	if a.terminal(a.stderr) {
		columns, _ := a.size()
		lines = ui.Wrap(lines, columns)
	}
	for _, l := range lines {
		fmt.Fprintln(a.stderr, l)
	}
}

// handleSignals hands signals to the command that runs. One that waits for none,
// or doesn't yet, is ended by the first.
func handleSignals(a *app) (stop func()) {
	in, out, done := a.signals, make(chan os.Signal, 4), make(chan struct{})
	var handled atomic.Bool
	a.signals, a.handled = out, &handled
	go func() {
		for {
			select {
			case sig := <-in:
				if !handled.Load() {
					a.exit(128 + signalNumber(sig))
					return
				}
				select {
				case out <- sig:
				default: // more than four make no difference
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// takeSignals returns the signals, which the caller handles from now on.
func (a *app) takeSignals() <-chan os.Signal {
	if a.handled != nil {
		a.handled.Store(true)
	}
	return a.signals
}

// handleInterrupts cancels the context at the first signal, and closes force at
// the second: a person who asks twice is not made to wait for commands to end.
// The third ends the program where it stands; the sandbox's guest ends with it,
// and the next start removes what is left. Nothing here waits for a writer: say
// must return at once. stop ends the listening.
func handleInterrupts(parent context.Context, signals <-chan os.Signal, say func(string), exit func(int)) (ctx context.Context, force <-chan struct{}, cancel context.CancelCauseFunc, stop func()) {
	ctx, cancel = context.WithCancelCause(parent)
	forced, ended, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; {
			select {
			case sig := <-signals:
				switch n++; n {
				case 1:
					cancel(&runner.Interrupted{Signal: signalNumber(sig)})
					say("stopping: what runs is being ended; once more to kill it at once")
				case 2:
					close(forced)
					say("killing the sandbox; once more to end without waiting")
				default:
					exit(128 + signalNumber(sig))
				}
			case <-ended:
				return
			}
		}
	}()
	return ctx, forced, cancel, func() {
		close(ended)
		<-done
		cancel(nil)
	}
}

func signalNumber(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return int(s)
	}
	return int(syscall.SIGINT)
}

// writeTable writes a table to standard output, as wide as the terminal is.
func (a *app) writeTable(rows [][]string) error {
	columns := 0
	if a.terminal(a.stdout) {
		columns, _ = a.size()
	}
	return ui.WriteTable(a.stdout, columns, rows)
}

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

// buildHint returns what to do about a build that failed.
func buildHint(e *images.BuildError) string {
	switch {
	case len(e.Refused) > 0:
		return "Allow the hosts in egress.allow, and name their networks in egress.private if they are not public; or fix the Dockerfile."
	case !e.Network:
		return "Fix the Dockerfile, or give its commands a network: --build-network public (images.build_network)."
	}
	return "Fix the Dockerfile."
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
	if e, ok := errors.AsType[*images.BuildError](err); ok {
		return buildHint(e)
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
