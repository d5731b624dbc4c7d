package runner

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/quarantine"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
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
		if quarantine.HasUnvouched(r.Quarantined) {
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
	if e.Hint == "" {
		return e.Cause
	}
	return e.Cause + ". " + e.Hint
}

// WithoutHint returns the cause alone.
func (e *Error) WithoutHint() string { return e.Cause }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// describeProblem returns what went wrong with a session and what to do, or nil.
func (s *Session) describeProblem(r Report) *record.Problem {
	logFile := filepath.Join(s.dir, sessiondir.LogFile)
	failure := s.events.currentTally().modelFailure
	detail := "The detail is in " + logFile
	if failure.ErrorID != "" {
		detail += " under " + failure.ErrorID
	}
	info := s.opts.modelInfo()
	model := info.String()
	if info.BaseURL != "" {
		model += " at " + info.BaseURL
	}
	switch r.Reason {
	case loop.StopAnswered:
		if r.Unapproved == 0 {
			return applyProblem(r)
		}
		return approvalProblem(r, countOf(r.Unapproved, "call"), s.opts.Broker != nil)
	case loop.StopProviderFailed:
		return &record.Problem{Cause: fmt.Sprintf("the model %s failed: %s", model, orElse(failure.Message, errText(r.Err))), Hint: providerHint(failure.Class) + " " + detail + "."}
	case loop.StopAuth:
		return &record.Problem{Cause: fmt.Sprintf("the model %s refuses the key: %s", model, orElse(failure.Message, errText(r.Err))), Hint: "Check the key and what it may use. " + detail + "."}
	case loop.StopStuck:
		return &record.Problem{Cause: "the agent repeated the same call with the same result", Hint: "Say in the task what it should do instead, or use another model."}
	case loop.StopSandboxStart:
		return new(startProblem(r.Err, otherSandboxHint))
	case loop.StopSandboxLost:
		return &record.Problem{Cause: errText(r.Err), Hint: "Look at the engine or runtime (caisson doctor), and run the task again. " + s.whereChangesAre()}
	case loop.StopLimit:
		return &record.Problem{Cause: "a limit was reached: " + budgetText(r.Limit), Hint: "Raise that limit, or make the task smaller."}
	case loop.StopTraceUnwritable:
		return &record.Problem{Cause: errText(r.Err), Hint: "Make room on the file system of " + s.dir + "."}
	case loop.StopNoApprover:
		p := approvalProblem(r, "a call", s.opts.Broker != nil)
		p.Hint += " --on-prompt deny goes on without it."
		return p
	case loop.StopCancelled:
		return &record.Problem{Cause: errText(r.Err), Hint: s.whereChangesAre()}
	}
	return nil
}

// approvalProblem describes calls that needed an approval and got none: because
// there was no way to ask, because the answers ended, or because none came in time.
func approvalProblem(r Report, calls string, canAsk bool) *record.Problem {
	const allow = " Or allow the class of the call with --policy, or a command for good with caisson approvals trust."
	unasked := slices.ContainsFunc(r.Denials, func(d record.Denial) bool { return d.Reason == "no_approver" })
	p := &record.Problem{Cause: calls + " needed an approval and got none"}
	switch {
	case !canAsk:
		p.Cause += ": nobody could be asked"
		p.Hint = "To be asked, run with standard input and standard error on a terminal, and without --json." + allow
	case !unasked && r.Reason != loop.StopNoApprover:
		p.Cause += " in time"
		p.Hint = "Answer while the question waits. --confirm-timeout sets how long that is." + allow
	default:
		p.Cause += ": the input for answers ended at a question, and nothing was asked after it"
		p.Hint = "Run it again and answer the questions; Ctrl-D ends them." + allow
	}
	return p
}

// otherSandboxHint is the hint for a session whose sandbox could not start.
const otherSandboxHint = "caisson doctor says what this machine can run; --backend and --image choose another sandbox."

// NamespacesHint is the hint for [sandbox.ErrNoNamespaces].
const NamespacesHint = "In a container, start it with docker run --security-opt seccomp=unconfined (and apparmor=unconfined, where AppArmor confines it) " +
	"and run Caisson as an ordinary user; runc needs --security-opt systempaths=unconfined too. Elsewhere allow this user to make user namespaces, or use the docker backend."

// NoExecHint is the hint for [programs.NoExecError].
const NoExecHint = "Mount that file system without noexec, or use directories on another one: XDG_STATE_HOME holds the sessions and the guest that they run, " +
	"XDG_CACHE_HOME images and unpacked programs."

// startProblem returns the cause and the hint of a sandbox that could not start,
// whatever the call that needed it made of the error. The hint is general where
// the cause has none of its own.
func startProblem(err error, general string) record.Problem {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Problem
	}
	p := record.Problem{Cause: errText(err), Hint: general}
	if e, ok := errors.AsType[*startError](err); ok {
		p.Cause = e.Error()
	}
	if errors.Is(err, sandbox.ErrNoNamespaces) {
		p.Hint = NamespacesHint
	}
	if errors.As(err, new(*programs.NoExecError)) {
		p.Hint = NoExecHint
	}
	return p
}

// providerHint returns what to do about a model call that failed.
func providerHint(class loop.ErrorClass) string {
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

// whereChangesAre tells where the changes of a session that did not end well are.
func (s *Session) whereChangesAre() string {
	if s.opts.isOverlay() {
		return "The workspace is unchanged; caisson diff shows what was done."
	}
	return "What was done is in the workspace."
}

// describeStart returns the error of a sandbox that could not start as users read it.
func (o Options) describeStart(err error) string {
	return (&Error{Problem: o.rewriteProblem(startProblem(err, otherSandboxHint))}).Error()
}

// rewriteProblem returns a problem in the words of o.Phrase.
func (o Options) rewriteProblem(p record.Problem) record.Problem {
	if o.Phrase == nil {
		return p
	}
	return o.Phrase(p)
}

// redactProblem takes secrets out of a problem: it may quote the provider.
func (s *Session) redactProblem(p *record.Problem) *record.Problem {
	if p == nil {
		return nil
	}
	*p = s.opts.rewriteProblem(*p)
	redact := redact.New(s.opts.Secrets)
	return &record.Problem{Cause: string(redact.Bytes([]byte(p.Cause))), Hint: string(redact.Bytes([]byte(p.Hint)))}
}

// applyProblem reports that the task is done and its changes are not in the
// workspace, though that was asked for.
func applyProblem(r Report) *record.Problem {
	switch o := r.Overlay; {
	case r.ApplyRefused:
		return &record.Problem{
			Cause: fmt.Sprintf("the task is done, and nothing of it was applied: %s changed in the workspace meanwhile, such as %s", countOf(len(o.Conflicts), "file"), o.Conflicts[0].Path),
			Hint:  "caisson diff " + r.Session + " shows both; caisson apply --skip-conflicts " + r.Session + " applies the rest.",
		}
	case o != nil && len(o.Failed) > 0:
		return &record.Problem{
			Cause: fmt.Sprintf("the task is done, and %d of its changes could not be applied: %s: %s", len(o.Failed), o.Failed[0].Path, o.Failed[0].Why),
			Hint:  "Fix that and run caisson apply " + r.Session + ": it goes on where it stopped.",
		}
	}
	return leftProblem(r)
}

// leftProblem reports that the task is done and the sandbox not wholly gone.
func leftProblem(r Report) *record.Problem {
	if len(r.Left) == 0 {
		return nil
	}
	return &record.Problem{
		Cause: "the task is done, and something of the sandbox could not be removed: " + r.Left[0],
		Hint:  "The next caisson run tries again; caisson doctor says whether the engine or runtime is ill.",
	}
}

func budgetText(l *record.Limit) string {
	if l == nil {
		return "unknown"
	}
	switch l.Kind {
	case limits.KindWallTime:
		return fmt.Sprintf("%d.%01d s of wall time", l.Limit/1000, l.Limit%1000/100)
	case limits.KindCost:
		return fmt.Sprintf("a cost of %s US dollars", record.CostUSD(&l.Limit))
	case limits.KindToolCalls:
		return countOf(int(l.Limit), "tool call")
	}
	return fmt.Sprintf("%d %s", l.Limit, l.Kind)
}

// countOf returns a number and its noun.
func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func errText(err error) string {
	if err == nil {
		return "no cause is known"
	}
	return err.Error()
}

func orElse(s, def string) string {
	if s == "" {
		return def
	}
	return s
}
