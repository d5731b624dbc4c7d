package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// Run runs one session with one task, to its end. In a resumed session ([Open]) the task is
// another turn; without a task, it continues the last turn. Run starts the sandbox during
// the first model call, if a call may need it, and takes everything down before it returns.
//
// Cancelling ctx ends the session in order: running commands are stopped and their partial
// output recorded, then session.ended is written. If the cause is an [Interrupted], the
// report has its signal. An error means that there was no session, as for [Open]; once
// session.created is written, failures are in the [Report].
func Run(ctx context.Context, o Options) (Report, error) {
	switch {
	case o.Task == "" && (o.Dir == nil || !o.Dir.Resumes()):
		return Report{}, errors.New("run session: Options.Task is missing")
	case len(o.Profiles) == 0:
		return Report{}, fmt.Errorf("run session: %w", loop.ErrNoModel)
	}
	o.continues = o.Task == ""
	s, err := Open(ctx, o)
	if err != nil {
		return Report{}, err
	}
	var t *Turn
	if o.Task == "" {
		t, err = s.Continue()
	} else {
		t, err = s.Start(o.Task)
	}
	if err == nil {
		<-t.Done()
		s.finishTask(ctx)
	} else {
		s.turns.keepFailure(err)
	}
	return s.Close(), nil // the report has why the turn didn't start
}

func (s *Session) writeCreated() error {
	kept := s.prompt
	s.prompt = loadContext(s.opts, s.original, s.skills, s.past, s.log)
	s.prompt.notice, s.prompt.ignored = kept.notice, append(kept.ignored, s.prompt.ignored...)
	created := s.newCreated(s.tools.Definitions())
	if s.past != nil {
		if err := s.writeResumed(created); err != nil {
			return err
		}
	} else if err := s.events.writeRecord(created); err != nil {
		return err
	} else if created.Model.Provider != "" {
		if err := sessiondir.SetLast(s.dir, created.Workspace); err != nil {
			s.log.Warn("open session", zap.Error(err))
		}
	}
	if s.opts.Warner != nil {
		s.opts.Warner(s.events.recordWarning)
	}
	for _, key := range s.tools.UnmatchedRules(serverNames(s.opts.MCP)...) {
		s.opts.Warnings = append(s.opts.Warnings, unmatchedRule(key))
	}
	for _, w := range s.opts.Warnings {
		if err := s.events.writeRecord(record.Warning{Message: w}); err != nil {
			return err
		}
	}
	return nil
}

// shutdown takes everything down, and writes the last record and the report.
func (s *Session) shutdown(out loop.Outcome, cause error) Report {
	s.mcp.close()
	s.endServices()
	s.closeTools()
	s.patches.reportLost()
	s.tracker.CheckAtEnd()
	s.sandbox.StopAndDestroy()
	var reached *record.NetworkTotals
	if s.network != nil {
		reached = new(s.network.Close())
	}
	bridged, used := s.bridge.close()
	if used != nil {
		s.turns.used = *used
	}
	s.beside.Wait() // its warnings must precede the last record
	r := Report{
		Session: s.opts.Dir.Session, Dir: s.dir, Err: out.Err,
		SessionEnded: record.SessionEnded{
			Turns: s.turns.count, Answer: s.opts.answerOf(out), Client: s.turns.closedBy, Reason: out.Reason, Truncated: out.Truncated, Limit: (*record.Limit)(out.Limit), Usage: s.turns.used,
			CostUSD: record.CostUSD(s.turns.used.CostMicroUSD), WallMS: time.Since(s.turns.begun).Milliseconds(), Network: reached, Bridge: bridged,
		},
	}
	if i, ok := errors.AsType[*Interrupted](cause); ok && out.Reason == loop.StopCancelled {
		r.Signal = i.Signal
	}
	s.addFacts(&r)
	r.Unapproved = s.tools.Unapproved()
	r.Changed, r.HostExecuted = []record.Changed{}, []record.HostExecuted{}
	apply := s.addChecks(&r) && s.opts.Apply && r.Reason == loop.StopAnswered && r.Unapproved == 0
	r.Patch, r.ApplyRefused = s.tracker.AddChanges(&r.SessionEnded, apply)
	s.endCaches(&r, apply)
	r.Problem = s.describeProblem(r)
	r.ExitStatus = OutcomeCode(r)
	s.writeEnd(&r)
	s.tracker.ReleaseState()
	return r
}

// answerOf returns the answer of a turn, or "". If the turn did not end with an answer, the
// model's earlier text does not count, but a closing completion does. That must have the
// required form too, and the model is not asked again.
func (o *Options) answerOf(out loop.Outcome) string {
	switch {
	case out.Reason == loop.StopAnswered:
		return out.Answer
	case !out.Closing:
		return ""
	case o.Format != nil:
		accepted, problems := o.Format.Check(out.Answer)
		if len(problems) > 0 {
			return ""
		}
		return accepted
	}
	return out.Answer
}

func (s *Session) addFacts(r *Report) {
	att, restarts, left := s.sandbox.EndFacts()
	r.Attestation, r.Restarts = att, restarts
	r.Left = append(r.Left, left...)
	r.Denials = record.NonNil(s.events.currentTally().denials)
	r.ProcessesKilled = s.exec.ProcessesKilled()
}

// writeEnd writes session.ended and the files beside the trace. If that fails, it becomes the
// reason of the session's end.
func (s *Session) writeEnd(r *Report) {
	err := errors.Join(r.writePatch(s.opts.Secrets), s.events.writeRecord(shortenLists(r.SessionEnded)), s.rec.Close())
	if err == nil {
		err = r.writeReport(s.opts.Secrets)
	}
	if err != nil {
		s.log.Error("write the end of the session", zap.Error(err))
		if r.Reason != loop.StopCancelled {
			r.Reason, r.Answer = loop.StopTraceUnwritable, ""
		}
		r.Err = errors.Join(r.Err, err)
		f := Fault{Kind: FaultRecords, Session: r.Session, Dir: s.dir, Overlay: s.opts.isOverlay(), Err: err}
		r.Problem = &record.Problem{Cause: f.Error(), Hint: s.opts.hint(f)}
		r.ExitStatus = OutcomeCode(*r)
	}
}
