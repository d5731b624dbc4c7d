package loop

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Run does one turn, from the user's message to its end, and says how it ended.
// The Outcome is complete whatever happens; the error is for misuse alone and
// wraps [ErrInvalid] or [ErrNoModel].
//
// Cancelling ctx ends the turn as soon as the model and the running tools have
// returned. Its cause decides the stop reason: a *limits.ExceededError is
// [StopLimit], an error that wraps one of the tools package's run-ending errors
// is that one's reason, anything else [StopCancelled].
//
//	decide (pure)         turn (acts)
//	─────────────         ───────────
//	history, state ─────▶ ask the model ──▶ Model.Complete
//	      ▲               call tools ─────▶ Dispatcher.Round
//	      └── messages ── nudge, close, end
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := o.validate(); err != nil {
		return Outcome{}, err
	}
	t := newTurn(o)
	if o.Budget.WallTime != nil {
		cause := &limits.ExceededError{
			Kind:  limits.KindWallTime,
			Limit: o.Budget.WallTime.Milliseconds(), Used: o.Budget.WallTime.Milliseconds(),
		}
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, t.started.Add(*o.Budget.WallTime), cause)
		defer stop()
	}
	return t.run(ctx), nil
}

// turn is one turn under way. It belongs to one goroutine.
type turn struct {
	Options
	log        *zap.Logger
	started    time.Time
	meter      limits.Meter
	identifier callIdentifier
	view       view
	history    []Message
	state      state
	// emitErr is the first error of Emit, after which it is not called again.
	emitErr error
}

// newTurn makes a turn of valid options that has not begun.
func newTurn(o Options) *turn {
	meter, _ := limits.NewMeter(o.Budget)
	if o.NewID == nil {
		o.NewID = newULID
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	t := &turn{
		Options:    o,
		log:        o.Logger.With(zap.String("session", o.Session), zap.String("turn", o.Turn)),
		started:    o.Started,
		meter:      meter,
		identifier: newCallIdentifier(o.NewID, o.History),
		view:       newView(),
		history:    append([]Message(nil), o.History...),
	}
	if t.started.IsZero() {
		t.started = time.Now()
	}
	t.state = state{meter: &t.meter, nudged: map[string]bool{}}
	return t
}

// run decides and acts until the end.
func (t *turn) run(ctx context.Context) Outcome {
	t.startTurn()
	for {
		t.state.elapsed = time.Since(t.started)
		t.state.hasTools = len(t.definitions()) > 0
		next := nextStep(t.history, t.state)
		if t.emitErr != nil {
			return t.finishTurn(ending{reason: StopTraceUnwritable, err: t.emitErr})
		}
		if ctx.Err() != nil {
			// An answer that is there is not lost to a clock.
			e := endingForCause(context.Cause(ctx))
			if next.action != actEnd || e.reason != StopLimit {
				return t.finishTurn(e)
			}
		}
		if next.action == actEnd {
			return t.finishTurn(next.ending)
		}
		if e := t.performStep(ctx, next); e != nil {
			return t.finishTurn(*e)
		}
	}
}

// startTurn reports the turn's beginning.
func (t *turn) startTurn() {
	t.emit(TurnStarted{Turn: t.Turn})
	if len(t.history) == 0 && t.System != "" {
		t.addMessage(NewText(RoleSystem, t.System))
	}
	// Calls that an earlier run left under way are never run again.
	for _, u := range unansweredCalls(t.history) {
		t.refuseCall(u, refusedInterrupted, tools.ErrorCancelled, "interrupted")
	}
	t.state.turnStart = len(t.history)
	for _, m := range t.Messages {
		t.addMessage(m)
	}
}

// performStep does one step; it returns an ending where the turn can't go on.
func (t *turn) performStep(ctx context.Context, s step) *ending {
	switch s.action {
	case actCallModel:
		return t.callModel(ctx, true)
	case actNudge:
		t.state.nudged[s.topic] = true
		t.state.emptyAnswer = false
		t.addMessage(NewText(RoleUser, s.message))
		return nil
	case actClose:
		t.state.closing = &s.ending
		t.addMessage(NewText(RoleUser, s.message))
		e := t.callModel(ctx, false)
		if e == nil || e.reason == StopCancelled || e.reason == StopTraceUnwritable {
			return e
		}
		// Without a last answer the turn still ended for the reason it closed for.
		return &ending{reason: s.ending.reason, limit: s.ending.limit, truncated: true, err: errors.Join(s.ending.err, e.err)}
	case actHandleCalls:
		return t.handleCalls(ctx, s)
	default:
		panic("loop: step without an action")
	}
}

// finishTurn completes the history and reports the end.
func (t *turn) finishTurn(e ending) Outcome {
	for _, u := range unansweredCalls(t.history) {
		t.refuseCall(u, refusedLost, tools.ErrorCancelled, string(e.reason))
	}
	out := Outcome{
		Reason: e.reason, Answer: lastText(t.history[t.state.turnStart:]), Truncated: e.truncated,
		Limit: e.limit, Usage: t.meter.Used(), History: t.history, Err: e.err,
	}
	t.emit(TurnEnded{
		Turn: t.Turn, Reason: out.Reason, Truncated: out.Truncated,
		Usage: out.Usage, Wall: time.Since(t.started),
	})
	if t.emitErr != nil && out.Reason != StopTraceUnwritable {
		out.Reason = StopTraceUnwritable
		out.Limit = nil
		out.Err = errors.Join(t.emitErr, out.Err)
	}
	return out
}

// addMessage appends to the history and reports it.
func (t *turn) addMessage(m Message) {
	t.history = append(t.history, m)
	t.emit(MessageAdded{Message: m})
}

// emit reports one event, unless reporting has failed before.
func (t *turn) emit(e Event) {
	if t.Emit == nil || t.emitErr != nil {
		return
	}
	t.emitErr = t.Emit(e)
}

// definitions are the tools that are offered now.
func (t *turn) definitions() []tools.Definition {
	if t.Dispatcher == nil {
		return nil
	}
	return t.Dispatcher.Definitions()
}
