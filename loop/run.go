package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Run runs one turn. It returns an error only for invalid options. The error wraps
// [ErrInvalid], and [ErrNoModel] if there is no model.
//
// If ctx is cancelled, the turn ends as soon as the model and running tools have
// returned. The cause determines the stop reason: [StopLimit] for a
// *limits.ExceededError, the corresponding reason for an error of package tools that
// ends runs, otherwise [StopCancelled].
//
//	nextStep (pure)       turn (acts)
//	───────────────       ───────────
//	history, state ─────▶ call the model ─▶ Model.Complete
//	      ▲               run calls ──────▶ Dispatcher.Round
//	      └── messages ── nudge, close, end
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := o.validate(); err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", ErrInvalid, err)
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

// turn is a running turn. Only one goroutine may use it.
type turn struct {
	Options
	log        *zap.Logger
	started    time.Time
	meter      limits.Meter
	identifier callIdentifier
	view       *View
	history    []Message
	state      state
	nearWarned bool
	// profile is the current one of profiles, or zero in a turn without a model.
	profile  Profile
	profiles profileList
	counted  countedInput
	emitErr  error
}

// newTurn returns a turn. The options must be valid.
func newTurn(o Options) *turn {
	meter, _ := limits.NewMeter(o.Budget)
	if o.NewID == nil {
		o.NewID = newULID
	}
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	t := &turn{
		Options:    o,
		log:        o.Logger.With(zap.String("session", o.Session), zap.String("turn", o.Turn)),
		started:    o.Started,
		meter:      meter,
		identifier: newCallIdentifier(o.NewID, o.History, o.Dispatcher),
		view:       o.View,
		history:    append([]Message(nil), o.History...),
	}
	if t.view == nil {
		t.view = NewView(nil)
	}
	if t.started.IsZero() {
		t.started = time.Now()
	}
	t.profiles = newProfileList(o.Profiles)
	if len(o.Profiles) > 0 {
		t.profile = t.profiles.profiles[0]
	}
	t.state = state{meter: &t.meter, nudged: map[string]bool{}, callHashes: roundHashes{}, callsOnly: len(o.Calls) > 0}
	return t
}

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
			// A limit doesn't discard an answer that has arrived.
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

func (t *turn) startTurn() {
	if t.Unfinished == nil {
		t.emit(TurnStarted{Turn: t.Turn, Budget: t.Budget})
	}
	if len(t.history) == 0 && t.System != "" && !t.state.callsOnly {
		t.addMessage(NewText(RoleSystem, t.System))
	}
	// Calls that an earlier run left are never run.
	for _, u := range unansweredCalls(t.history) {
		t.refuseCall(u, refusedInterrupted, tools.ErrorCancelled, "interrupted")
	}
	t.state.turnStart = len(t.history)
	if t.Unfinished != nil {
		t.state.turnStart = t.Unfinished.Start
		t.meter.Add(t.Unfinished.Used)
		t.state.restoreState(t.history)
	}
	if t.state.callsOnly {
		var calls Message
		for _, u := range t.Calls {
			calls.Blocks = append(calls.Blocks, Block{ToolUse: &u})
		}
		t.addMessage(t.identifier.identifyMessage(Response{Message: calls}, t.definitions(), ModelInfo{}))
		return
	}
	for _, m := range t.Messages {
		t.addMessage(m)
	}
}

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
		// A failed last answer doesn't change the reason.
		return &ending{reason: s.ending.reason, limit: s.ending.limit, truncated: true, err: errors.Join(s.ending.err, e.err)}
	case actHandleCalls:
		return t.handleCalls(ctx, s)
	default:
		panic("loop: step without an action")
	}
}

func (t *turn) finishTurn(e ending) Outcome {
	for _, u := range unansweredCalls(t.history) {
		t.refuseCall(u, refusedLost, tools.ErrorCancelled, string(e.reason))
	}
	out := Outcome{
		Reason: e.reason, Answer: lastText(t.history[t.state.turnStart:]), Truncated: e.truncated,
		Closing: t.state.closing != nil && e.reason == t.state.closing.reason && t.history[len(t.history)-1].Role == RoleAssistant,
		Limit:   e.limit, Usage: t.meter.Used(), Estimate: t.meter.Estimate(), History: t.history, Err: e.err,
	}
	t.emit(TurnEnded{
		Turn: t.Turn, Reason: out.Reason, Truncated: out.Truncated, Limit: out.Limit,
		Usage: out.Usage, Wall: time.Since(t.started),
	})
	if t.emitErr != nil && out.Reason != StopTraceUnwritable {
		out.Reason = StopTraceUnwritable
		out.Limit, out.Closing = nil, false
		out.Err = errors.Join(t.emitErr, out.Err)
	}
	return out
}

func (t *turn) addMessage(m Message) {
	t.history = append(t.history, m)
	t.emit(MessageAdded{Message: m})
}

// emit passes an event to Emit, unless that failed before.
func (t *turn) emit(e Event) {
	if t.Emit == nil || t.emitErr != nil {
		return
	}
	t.emitErr = t.Emit(e)
}

func (t *turn) definitions() []tools.Definition {
	if t.Dispatcher == nil {
		return nil
	}
	return t.Dispatcher.Definitions()
}
