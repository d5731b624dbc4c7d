package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/history"
	"github.com/caisson-run/caisson/runner/record"
)

// turns holds a session's turns, and what they leave for the next one. One runs at a time,
// of the model or of concurrent calls. None begins while something has the session to itself,
// such as a fork, or once the session is closed.
type turns struct {
	opts   *Options
	events *eventRecorder
	// ctx and end are the session's.
	ctx context.Context //nolint:containedctx // the contexts of the turns derive from it
	end context.CancelCauseFunc
	// begun is when this process began the session, moved back by the time that earlier
	// processes worked on it.
	begun time.Time
	// breaker bounds the usage of all turns together.
	breaker *limits.SessionBreaker

	mu      sync.Mutex
	running *Turn // or nil
	count   int
	closing bool
	held    bool
	// user started the running or last turn; closedBy is the label of the user who closed the
	// session.
	user     User
	closedBy string
	// ended is the last turn that has ended, last its outcome, and used the usage of all turns
	// together.
	ended *Turn
	last  loop.Outcome
	used  limits.Usage
	// history holds the messages before the next turn, and view how requests show them.
	history []loop.Message
	view    *loop.View
	// unfinished is the turn of an earlier process to resume. It is nil if there is none, or
	// once it has been resumed or abandoned.
	unfinished *history.Turn
}

func (v *turns) restore(p *resumption) {
	v.begun = v.begun.Add(-p.Active)
	v.count, v.used, v.history = p.Turns, p.Used, p.Messages
	v.view = loop.NewView(p.Summary)
	v.breaker.Add(p.Used)
	v.breaker.AddTime(p.Active)
	if p.Unfinished() {
		v.unfinished = p.Last
	}
}

// checkIdle returns an error that wraps [ErrBusy] or [ErrOver] if no turn can begin. The caller
// holds v.mu.
func (v *turns) checkIdle() error {
	switch {
	case v.running != nil:
		return fmt.Errorf("%w: %s", ErrBusy, v.running.ID)
	case v.held:
		return fmt.Errorf("%w: none before the session is forked", ErrBusy)
	case v.closing:
		return fmt.Errorf("%w: it is closed", ErrOver)
	case v.ctx.Err() != nil && v.count > 0:
		return fmt.Errorf("%w: %w", ErrOver, context.Cause(v.ctx))
	}
	return nil
}

// admit makes t the next turn if possible. The caller holds v.mu.
func (v *turns) admit(t *Turn) error {
	if err := v.checkIdle(); err != nil {
		return fmt.Errorf("start turn: %w", err)
	}
	if err := v.abandonUnfinished(); err != nil {
		return fmt.Errorf("start turn: %w: %w", ErrOver, err)
	}
	// With nothing left of any one limit, no turn can start.
	if err := v.breaker.Check(limits.StepToolCall); err != nil {
		return fmt.Errorf("start turn: %w: %w", ErrOver, err)
	}
	t.ID, t.begun = record.NewID("trn"), time.Now()
	v.count++
	return nil
}

// begin makes t the running turn, with a context that t.cancel ends. The caller holds v.mu.
func (v *turns) begin(t *Turn, user User) context.Context {
	ctx, cancel := context.WithCancelCause(v.ctx)
	t.cancel, t.done = cancel, make(chan struct{})
	v.running, v.user = t, user
	return ctx
}

// finish keeps the outcome of a turn and marks it done. The caller holds v.mu.
func (v *turns) finish(t *Turn, out loop.Outcome, cause error) {
	v.last, v.history = out, out.History
	v.addUsed(out.Usage)
	t.cause = cause
	if out.Reason == loop.StopSandboxStart {
		v.end(out.Err) // a session's sandbox is started only once
	}
	t.report = TurnReport{
		Turn: t.ID, Reason: out.Reason, Answer: v.opts.answerOf(out), Truncated: out.Truncated, Limit: (*record.Limit)(out.Limit),
		Usage: out.Usage, CostUSD: record.CostUSD(out.Usage.CostMicroUSD), WallMS: time.Since(t.begun).Milliseconds(), Err: out.Err,
	}
	v.running, v.ended = nil, t
	close(t.done)
}

// addUsed adds the usage of the last turn. The first turn's is not added to the zero value,
// whose unknown cost would make the sum's unknown. The caller holds v.mu.
func (v *turns) addUsed(u limits.Usage) {
	if v.count > 1 {
		u = v.used.Plus(u)
	}
	v.used = u
}

// hold lets no turn begin until release. The error wraps [ErrBusy] or [ErrOver].
func (v *turns) hold() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.checkIdle(); err != nil {
		return err
	}
	v.held = true
	return nil
}

func (v *turns) release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held = false
}

// close lets no more turns begin, and returns the running one. client is the label of the user
// who closes the session, or "".
func (v *turns) close(client string) *Turn {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closing, v.closedBy = true, client
	return v.running
}

func (v *turns) haveBegun() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.running != nil || v.ended != nil
}

// isDirect reports whether the running turn consists of calls.
func (v *turns) isDirect() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.running != nil && v.running.calls != nil
}

// currentUser returns the user of the running turn, or of the last one.
func (v *turns) currentUser() User {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.user
}

// unfinishedTurn returns the turn of an earlier process that can be resumed, or nil.
func (v *turns) unfinishedTurn() *history.Turn {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unfinished
}

func (v *turns) setAnswer(answer string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last.Answer = answer
}

// cancelLast marks the last turn as cancelled after its answer.
func (v *turns) cancelLast(err, cause error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last.Reason, v.last.Err, v.ended.cause = loop.StopCancelled, err, cause
}

// keepFailure keeps why [Run] could not start its turn, for the report.
func (v *turns) keepFailure(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = loop.Outcome{Reason: loop.StopCancelled, Err: err, History: v.history}
	if e, ok := errors.AsType[*limits.ExceededError](err); ok {
		v.last.Reason, v.last.Limit, v.last.Truncated = loop.StopLimit, e, true
	}
}

func (v *turns) status() Status {
	v.mu.Lock()
	defer v.mu.Unlock()
	st := Status{Turns: v.count, Usage: v.used}
	if v.running != nil {
		st.Turn = v.running.ID
	}
	if v.ended != nil {
		st.Last = &v.ended.report
	}
	switch cause := context.Cause(v.ctx); {
	case v.closing:
		st.Over = "closed"
	case cause != nil:
		st.Over = cause.Error()
	default:
		if err := v.breaker.Check(limits.StepToolCall); err != nil {
			st.Over = err.Error()
		}
	}
	return st
}
