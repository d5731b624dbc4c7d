package runner

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/internal/quarantine"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Outcome codes of sessions, for their last record. A program that runs one session can exit
// with its code. docs/exit-status.md describes them.
const (
	OutcomeDone         = 0
	OutcomeFailed       = 1 // the agent or the model failed, or something was left behind
	OutcomeAuth         = 41
	OutcomeInput        = 42 // no sandbox could start because a mount or the image's user is not possible
	OutcomeSandboxStart = 44
	OutcomeSandboxLost  = 45
	OutcomeLimit        = 53
	OutcomeFatal        = 54 // a tool failed fatally, or the trace can't be written
	OutcomeNoApprover   = 56
	OutcomeConflict     = 57  // no changes were applied: the originals changed meanwhile
	OutcomeUnvouched    = 58  // something in the workspace was not quarantined or not looked at
	OutcomeUnverified   = 60  // the verifying command failed or could not run
	OutcomeFormat       = 61  // the answer does not have the required form
	OutcomeInterrupted  = 130 // SIGINT; 128 plus the signal's number for others
)

// outcomeCodes are the codes of faults; others have OutcomeFailed.
var outcomeCodes = map[FaultKind]int{
	FaultModelKey:     OutcomeAuth,
	FaultSandboxStart: OutcomeSandboxStart,
	FaultSandboxLost:  OutcomeSandboxLost,
	FaultLimit:        OutcomeLimit,
	FaultRecords:      OutcomeFatal,
	FaultNoApprover:   OutcomeNoApprover,
	FaultConflicts:    OutcomeConflict,
	FaultUnverified:   OutcomeUnverified,
	FaultFormat:       OutcomeFormat,
	FaultCancelled:    OutcomeInterrupted,
}

// OutcomeCode returns the code of a report. An interruption beats errors, and errors beat
// success. An unvouched workspace beats success, a limit and a missing approval.
func OutcomeCode(r Report) int {
	switch r.Reason {
	case loop.StopAnswered, StopNoTurn, loop.StopLimit, loop.StopNoApprover:
		if quarantine.HasUnvouched(r.Quarantined) {
			return OutcomeUnvouched
		}
	}
	if r.Reason == StopNoTurn { // a resumed session may have old denials
		if len(r.Left) > 0 {
			return OutcomeFailed
		}
		return OutcomeDone
	}
	kind := r.faultKind()
	switch {
	case kind == "" && r.Reason == loop.StopAnswered:
		return OutcomeDone
	case kind == FaultSandboxStart && (errors.As(r.Err, new(*sandbox.MountError)) || errors.As(r.Err, new(*images.UserError))):
		return OutcomeInput
	case kind == FaultCancelled && r.Signal > 0:
		return 128 + r.Signal
	}
	return cmp.Or(outcomeCodes[kind], OutcomeFailed)
}

// faultKind returns what went wrong, or "".
func (r Report) faultKind() FaultKind {
	switch {
	case r.Reason != loop.StopAnswered:
		return FaultOf(r.Session, r.SessionEnded).Kind
	case r.Unapproved > 0:
		return FaultNoApprover
	}
	r.Denials = nil // the agent managed in spite of them
	kind := faultOfDone(r.SessionEnded)
	switch {
	case kind == FaultFormat, kind == FaultUnverified:
	case r.ReplayFailed:
		return FaultReplay
	case r.ApplyRefused:
		return FaultConflicts
	}
	return kind
}

// Interrupted is the cause with which a signal cancels a run.
type Interrupted struct {
	// Signal is the signal's number: 2 for SIGINT, 15 for SIGTERM.
	Signal int
}

func (i *Interrupted) Error() string {
	if i.Signal == 15 {
		return "terminated"
	}
	return "interrupted"
}

// describeProblem returns what went wrong and what to do, without secrets, or nil. It may quote
// the provider.
func (s *Session) describeProblem(r Report) *record.Problem {
	failure := s.events.currentTally().modelFailure
	f := s.findFault(r, failure)
	if f.Kind == "" {
		return nil
	}
	redactor := redact.New(s.opts.Secrets)
	return &record.Problem{Cause: redactor.Text(s.opts.describeCause(f, r, failure)), Hint: redactor.Text(s.opts.hint(f))}
}

// findFault returns the fault of a session; its Kind is "" if there is none. failure is the last
// failed model call, or zero.
func (s *Session) findFault(r Report, failure record.ModelCallFailed) Fault {
	f := FaultOf(r.Session, r.SessionEnded)
	f.Kind = r.faultKind()
	f.Dir, f.Overlay, f.Err = s.dir, s.opts.isOverlay(), r.Err
	switch f.Kind {
	case FaultModel, FaultModelKey:
		f.LogFile, f.ErrorID, f.Model = filepath.Join(s.dir, sessiondir.LogFile), failure.ErrorID, failure.Class
	case FaultNoApprover:
		f.Kind = approvalFault(r, s.opts.Broker != nil)
	}
	return f
}

func approvalFault(r Report, canAsk bool) FaultKind {
	unasked := slices.ContainsFunc(r.Denials, func(d record.Denial) bool { return d.Reason == "no_approver" })
	switch {
	case !canAsk:
		return FaultNoApprover
	case !unasked && r.Reason != loop.StopNoApprover:
		return FaultLateAnswer
	}
	return FaultNoAnswer
}

func (o Options) describeCause(f Fault, r Report, failure record.ModelCallFailed) string {
	switch f.Kind {
	case FaultModel:
		return fmt.Sprintf("the model %s failed: %s", o.failedModel(failure), cmp.Or(failure.Message, errText(r.Err)))
	case FaultModelKey:
		return fmt.Sprintf("the model %s refuses the key: %s", o.failedModel(failure), cmp.Or(failure.Message, errText(r.Err)))
	case FaultStuck:
		return "the agent repeated the same call with the same result"
	case FaultSandboxStart:
		return startCause(r.Err)
	case FaultLimit:
		if r.Limit == nil {
			return "a limit was reached"
		}
		return "a limit was reached: " + r.Limit.String()
	case FaultNoApprover:
		return unapprovedCalls(r) + ": no one could be asked"
	case FaultLateAnswer:
		return unapprovedCalls(r) + " in time"
	case FaultNoAnswer:
		return unapprovedCalls(r) + ": the input for answers ended at a question, and nothing was asked after it"
	case FaultConflicts:
		return fmt.Sprintf("the task is done, and nothing of it was applied: %s changed in the workspace meanwhile, such as %s", limits.FormatCount(len(r.Overlay.Conflicts), "file"), r.Overlay.Conflicts[0].Path)
	case FaultNotApplied:
		failed := r.Overlay.Failed
		return fmt.Sprintf("the task is done, and %d of its changes could not be applied: %s: %s", len(failed), failed[0].Path, failed[0].Why)
	case FaultFormat:
		return "the answer does not have the form that was asked for: " + strings.Join(r.AnswerProblems, "; ")
	case FaultUnverified:
		return fmt.Sprintf("the verification of the result failed: %s: %s", tools.Elide(r.Verification.Command, 200), r.Verification)
	case FaultReplay:
		return fmt.Sprintf("the tools of the replay returned something else than before, in %s: the first is %s", limits.FormatCount(len(r.Differences), "place"), r.Differences[0])
	case FaultLeft:
		if r.Reason == StopNoTurn {
			return "something of the sandbox could not be removed: " + r.Left[0]
		}
		return "the task is done, and something of the sandbox could not be removed: " + r.Left[0]
	}
	return errText(r.Err)
}

func unapprovedCalls(r Report) string {
	calls := "a call"
	if r.Reason == loop.StopAnswered {
		calls = limits.FormatCount(r.Unapproved, "call")
	}
	return calls + " needed an approval and got none"
}

func (o Options) failedModel(failure record.ModelCallFailed) string {
	info := cmp.Or(failure.Model, o.modelInfo()) // the fallback may have failed last
	name := info.String()
	if info.BaseURL != "" {
		name += " at " + info.BaseURL
	}
	return name
}

// startCause returns why a sandbox could not start, without what the failed call wrapped
// around it.
func startCause(err error) string {
	if e, ok := errors.AsType[*livesandbox.StartError](err); ok {
		return e.Error()
	}
	return errText(err)
}

// describeStart returns the error of a sandbox that could not start, for users.
func (o Options) describeStart(err error) string {
	return startCause(err) + ". " + o.hint(Fault{Kind: FaultSandboxStart, Session: o.Dir.Session, Err: err})
}

func errText(err error) string {
	if err == nil {
		return "no cause is known"
	}
	return err.Error()
}
