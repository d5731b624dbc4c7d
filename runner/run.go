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

// Run does one session: one task, to its end. In a session that goes on ([Open]) it does
// the task as another turn, or without one continues the last turn. It makes the sandbox while the
// first model call is under way, if a call may need it, and takes everything
// down before it returns.
//
// Cancelling ctx ends the session in order: running commands are stopped, with
// their partial output in the records, and session.ended is written. A cause
// that is an [Interrupted] is in the report. The error is the reason why there was no
// session, and as for [Open]; once session.created is written, what went wrong
// is in the [Report].
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
	return s.Close(), nil // what kept the turn from starting is in the report
}

// writeCreated writes session.created, and what a user should know before anything runs.
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

// shutdown takes everything down, writes the last record and the report.
func (s *Session) shutdown(out loop.Outcome, cause error) Report {
	s.mcp.close()
	s.services.endAll()
	s.closeTools()
	s.patches.reportLost()
	s.tracker.CheckAtEnd()
	s.sandbox.StopAndDestroy()
	var reached *record.NetworkTotals
	if s.network != nil {
		reached = new(s.network.Close())
	}
	s.beside.Wait() // its warnings are recorded before the end
	r := Report{
		Session: s.opts.Dir.Session, Dir: s.dir, Err: out.Err,
		SessionEnded: record.SessionEnded{
			Turns: s.turns.count, Answer: s.opts.answerOf(out), Client: s.turns.closedBy, Reason: out.Reason, Truncated: out.Truncated, Limit: (*record.Limit)(out.Limit), Usage: s.turns.used,
			CostUSD: record.CostUSD(s.turns.used.CostMicroUSD), WallMS: time.Since(s.turns.begun).Milliseconds(), Network: reached,
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
	problems := problemDescriber{opts: s.opts, dir: s.dir, failure: s.events.currentTally().modelFailure}
	r.Problem = problems.redactProblem(problems.describeProblem(r))
	r.ExitStatus = OutcomeCode(r)
	s.writeEnd(&r)
	s.tracker.ReleaseState()
	return r
}

// answerOf returns the answer of a turn, or "". If a turn ended for another reason,
// earlier text of the model is no answer, but the closing completion is one. It must have
// the form of answers too, and the model is not asked again.
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

// addFacts fills in what the sandbox and the event recorder know.
func (s *Session) addFacts(r *Report) {
	att, restarts, left := s.sandbox.EndFacts()
	r.Attestation, r.Restarts = att, restarts
	r.Left = append(r.Left, left...)
	r.Denials = record.NonNil(s.events.currentTally().denials)
	r.ProcessesKilled = s.exec.ProcessesKilled()
}

// writeEnd writes session.ended and what stands beside the trace. A trace that
// can't be written is then the reason of the session's end.
func (s *Session) writeEnd(r *Report) {
	files := reportWriter{dir: s.dir, secrets: s.opts.Secrets}
	err := errors.Join(files.writePatch(r), s.events.writeRecord(shortenLists(r.SessionEnded)), s.rec.Close())
	if err == nil {
		err = files.writeReport(*r)
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
