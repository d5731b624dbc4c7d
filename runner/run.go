package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Run does one session: one task, to its end. It makes the sandbox while the
// first model call is under way, and takes everything down before it returns.
//
// Cancelling ctx ends the session in order: running commands are stopped, with
// their partial output in the records, and session.ended is written. A cause
// that is an [Interrupted] is in the report. The error says why there was no
// session, and is an [Error]; once session.created is written, what went wrong
// is in the [Report].
func Run(ctx context.Context, o Options) (Report, error) {
	s, err := open(ctx, o)
	if err != nil {
		return Report{}, err
	}
	return s.run(ctx), nil
}

// run does the session and closes it.
func (s *session) run(parent context.Context) Report {
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	s.box.fail = func(err error) { end(err) }
	s.journal.cancelled = func() string { return cancelName(context.Cause(ctx)) }

	forced := s.obeyForce()
	defer forced()
	out := s.turn(ctx)
	if out.Reason == loop.StopAnswered {
		s.box.settle(ctx)
		if err := context.Cause(ctx); errors.Is(err, tools.ErrSandboxStart) {
			out.Reason, out.Err = loop.StopSandboxStart, err
		}
	}
	return s.finish(out, context.Cause(ctx))
}

// turn records the beginning, starts the container and runs the loop.
func (s *session) turn(ctx context.Context) loop.Outcome {
	if err := s.begin(); err != nil {
		return loop.Outcome{Reason: loop.StopTraceUnwritable, Err: err}
	}
	s.look(ctx)
	s.box.start()
	defer s.takeCommands(ctx)()
	out, err := loop.Run(ctx, loop.Options{
		Model: s.opts.Model, Dispatcher: s.tools, Budget: s.opts.Budget,
		System:   loop.SystemPrompt(loop.PromptOptions{Workspace: sandbox.WorkspaceDir, Instructions: s.opts.Instructions}),
		Messages: []loop.Message{loop.NewText(loop.RoleUser, s.opts.Task)},
		Session:  s.opts.Folder.Session, Turn: newID("trn"), Emit: s.journal.loopEvent, Started: s.begun,
		MaxOutputTokens: s.opts.MaxOutputTokens, ContextWindow: s.opts.ContextWindow, Logger: s.log,
	})
	if err != nil { // options of ours that make no sense
		return loop.Outcome{Reason: loop.StopProviderFailed, Err: err}
	}
	return out
}

// begin writes session.created, and what a user should know before anything runs.
func (s *session) begin() error {
	if err := s.journal.write(s.created(s.tools.Definitions())); err != nil {
		return err
	}
	if s.opts.Warner != nil {
		s.opts.Warner(func(message string) {
			// What can't be recorded ends the session at the next record.
			_ = s.journal.write(Warning{Message: message})
		})
	}
	for _, key := range s.tools.UnmatchedRules() {
		s.opts.Warnings = append(s.opts.Warnings, fmt.Sprintf("the policy's rule for %q matches no tool", key))
	}
	for _, w := range s.opts.Warnings {
		if err := s.journal.write(Warning{Message: w}); err != nil {
			return err
		}
	}
	return nil
}

// obeyForce destroys the sandbox when the caller will not wait any longer. The
// function that it returns stops waiting for that.
func (s *session) obeyForce() func() {
	if s.opts.Force == nil {
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.opts.Force:
			s.log.Warn("forced end: destroying the sandbox")
			s.box.close()
		case <-stop:
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

// finish takes everything down, writes the last record and the report.
func (s *session) finish(out loop.Outcome, cause error) Report {
	s.drain()
	s.quarantineAll()
	s.box.close()
	r := Report{
		Session: s.opts.Folder.Session, Dir: s.dir, Answer: out.Answer, Err: out.Err,
		SessionEnded: SessionEnded{
			Reason: out.Reason, Truncated: out.Truncated, Limit: wireLimit(out.Limit), Usage: out.Usage,
			CostUSD: costUSD(out.Usage.CostMicroUSD), WallMS: milliseconds(time.Since(s.begun)),
		},
	}
	if i, ok := errors.AsType[*Interrupted](cause); ok && out.Reason == loop.StopCancelled {
		r.Signal = i.Signal
	}
	s.facts(&r)
	r.Unapproved = s.tools.Unapproved()
	s.changes(&r)
	r.Problem = s.problem(r)
	r.ExitStatus = ExitStatus(r)
	s.close(&r)
	return r
}

// facts fills in what the container and the journal know.
func (s *session) facts(r *Report) {
	att, restarts, left := s.box.facts()
	r.Attestation, r.Restarts = att, restarts
	r.Left = append(r.Left, left...)
	r.Denials = listed(s.journal.counted().denials)
	r.ProcessesKilled = s.exec.processesKilled()
}

// close writes session.ended and what stands beside the trace. A trace that
// can't be written is what the session then ended by.
func (s *session) close(r *Report) {
	err := errors.Join(s.writePatch(r), s.journal.write(short(r.SessionEnded)), s.rec.Close())
	if err == nil {
		err = s.writeReport(*r)
	}
	if err != nil {
		s.log.Error("write the end of the session", zap.Error(err))
		if r.Reason != loop.StopCancelled {
			r.Reason = loop.StopTraceUnwritable
		}
		r.Err = errors.Join(r.Err, err)
		r.Problem = &Problem{
			Cause: fmt.Sprintf("the records in %s can't be written: %v", s.dir, err),
			Mend:  "Make room on that file system; what was written before can be read.",
		}
		r.ExitStatus = ExitStatus(*r)
	}
}
