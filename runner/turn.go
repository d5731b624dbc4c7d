package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

var (
	// ErrBusy reports that a turn is running. Only one runs at a time.
	ErrBusy = errors.New("a turn is running")
	// ErrOver reports that the session takes no more turns: it is closed or cancelled, its
	// sandbox is lost, or its limits are used up.
	ErrOver = errors.New("session is over")
)

// StopNoTurn is the reason of a session closed before its first turn.
const StopNoTurn loop.StopReason = "no_turn"

var errClosed = errors.New("session closed")

// Turn is a running or ended turn, from a user's message to its answer or from a call to its
// result. It is safe for concurrent use and needs no closing.
type Turn struct {
	// ID is trn_ and a ULID.
	ID string

	begun time.Time
	// traceparent is the caller's span, or "".
	traceparent string

	cancel context.CancelCauseFunc
	done   chan struct{}
	report TurnReport
	cause  error
	// calls is set for turns of [Session.CallTool].
	calls *callTurn
}

// TurnReport tells how a turn ended.
type TurnReport struct {
	Turn   string          `json:"turn"`
	Reason loop.StopReason `json:"stop_reason"`
	// Answer is the answer of the turn or of its closing completion, or "".
	Answer string `json:"answer"`
	// Truncated reports that a limit ended the turn or that the provider cut the answer.
	Truncated bool          `json:"truncated"`
	Limit     *record.Limit `json:"limit,omitempty"`
	Usage     limits.Usage  `json:"usage"`
	CostUSD   string        `json:"cost_usd"`
	WallMS    int64         `json:"wall_ms"`
	// Err is the cause of a bad end.
	Err error `json:"-"`
}

// Cancel ends the turn with a cause: running commands are stopped and open confirmations
// withdrawn, and both are recorded. It does not wait. A second call does nothing.
func (t *Turn) Cancel(cause error) { t.cancel(cause) }

// Done is closed when the turn has ended and its records are written.
func (t *Turn) Done() <-chan struct{} { return t.done }

// Report waits for the end of the turn and returns its report.
func (t *Turn) Report() TurnReport {
	<-t.done
	return t.report
}

// Wait waits for the turn's end and returns its report. If ctx ends first, it cancels the
// turn. The error is why the turn ended without an answer.
func (t *Turn) Wait(ctx context.Context) (TurnReport, error) {
	stop := context.AfterFunc(ctx, func() { t.Cancel(context.Cause(ctx)) })
	r := t.Report()
	stop()
	if r.Err == nil && r.Reason != loop.StopAnswered {
		return r, fmt.Errorf("the turn ended early: %s", r.Reason)
	}
	return r, r.Err
}

// Start begins a turn with a message of [Options].User, and doesn't wait. Errors wrap
// [ErrBusy], [ErrOver] or [loop.ErrNoModel].
func (s *Session) Start(message string) (*Turn, error) {
	return s.StartFor(s.opts.User, message, TurnOptions{})
}

// TurnOptions configures a turn of [Session.StartFor].
type TurnOptions struct {
	// Budget has lower limits than [Options].Budget for this turn.
	Budget limits.Budget
	// Traceparent is the caller's span as a W3C Trace Context header, for the records. A
	// malformed one is ignored.
	Traceparent string
}

// StartFor is [Session.Start] for a given user, who determines which tools the turn offers.
// An error about o.Budget is a *[limits.RaisedError] or a [Fault] of kind
// [FaultInvalidLimits].
func (s *Session) StartFor(user User, message string, o TurnOptions) (*Turn, error) {
	budget, err := lowerBudget(s.opts, o.Budget)
	if err != nil {
		return nil, fmt.Errorf("start turn: %w", err)
	}
	switch {
	case len(s.opts.Profiles) == 0:
		return nil, fmt.Errorf("start turn: %w", loop.ErrNoModel)
	case message == "":
		return nil, errors.New("start turn: the message is empty")
	}
	t := &Turn{traceparent: record.ParseTraceparent(o.Traceparent)}
	s.turns.mu.Lock()
	defer s.turns.mu.Unlock()
	if err := s.turns.admit(t); err != nil {
		return nil, err
	}
	if s.turns.count == 1 {
		t.begun = s.turns.begun // the first turn's time is the session's
	}
	s.launchTurn(t, user, func(o *loop.Options) {
		s.configureModel(o)
		o.Budget = s.turns.breaker.Turn(budget)
		o.Messages = s.prompt.openingMessages(message, len(s.turns.history) == 0)
	})
	return t, nil
}

// lowerBudget returns the turn's limits, lowered where lower says so.
func lowerBudget(o Options, lower limits.Budget) (limits.Budget, error) {
	budget, err := o.Budget.LowerTo(lower)
	if err != nil {
		return limits.Budget{}, err
	}
	for _, p := range slices.Concat(o.Profiles, o.Workers.Profiles) {
		if err := p.CheckPrice(budget); err != nil {
			return limits.Budget{}, Fault{Kind: FaultInvalidLimits, Err: err}
		}
	}
	return budget, nil
}

// configureModel sets the options that all turns of the model share.
func (s *Session) configureModel(o *loop.Options) {
	o.Profiles, o.History, o.View = s.opts.Profiles, s.turns.history, s.turns.view
	o.System = loop.SystemPrompt(loop.PromptOptions{Workspace: s.opts.mountPoint(), Network: s.opts.Egress.enabled(), Instructions: boundary.Join(s.prompt.operator, "\n\n"), Canary: s.opts.Canary})
}

// launchTurn runs a turn in the background. The caller holds s.turns.mu.
func (s *Session) launchTurn(t *Turn, user User, configure func(*loop.Options)) {
	ctx := s.turns.begin(t, user)
	s.events.beginTurn(user.Name, t.traceparent, record.ActorAgent, func() record.TurnCancelled { return cancellationRecord(context.Cause(ctx)) })
	go func() {
		out := s.runTurn(ctx, t, user, configure)
		s.turns.mu.Lock()
		defer s.turns.mu.Unlock()
		s.turns.breaker.Add(out.Usage)
		s.turns.breaker.AddEstimate(out.Estimate)
		s.turns.finish(t, out, context.Cause(ctx))
		t.cancel(nil)
	}()
}

// turnOptions returns the options that all turns of a user share.
func (s *Session) turnOptions(t *Turn, user User) loop.Options {
	o := loop.Options{
		Dispatcher: s.tools, Session: s.opts.Dir.Session, Turn: t.ID, Logger: s.log,
		Emit: s.events.loopEvent,
	}
	if s.opts.Ledger != nil {
		o.Ledger = s.opts.Ledger.ForUser(user.Name)
	}
	return o
}

func (s *Session) runTurn(ctx context.Context, t *Turn, user User, configure func(*loop.Options)) loop.Outcome {
	o := s.turnOptions(t, user)
	o.Started, o.Budget = t.begun, s.turns.breaker.Turn(s.opts.Budget)
	o.Emit = func(e loop.Event) error {
		if _, ok := e.(loop.ModelCallStarted); ok {
			s.exec.StartCheckpoint()
		}
		return s.events.loopEvent(e)
	}
	configure(&o)
	if s.mayNeedSandbox() {
		s.sandbox.EnsureStarted()
	}
	s.startServices()
	if len(o.Profiles) > 0 {
		s.mcp.start()
		s.mcp.waitLoaded(ctx)
	}
	out, err := loop.Run(ctx, o)
	if err != nil { // our options are invalid
		return loop.Outcome{Reason: loop.StopProviderFailed, Err: err, History: s.turns.history}
	}
	if out.Reason == loop.StopAnswered {
		s.sandbox.WaitStarted(ctx)
	}
	return out
}

// mayNeedSandbox reports whether the turn may call a tool in the sandbox, which then starts
// together with the first model call.
func (s *Session) mayNeedSandbox() bool {
	return !s.opts.startOnDemand && s.opts.Policy.AllowsSandboxed(s.tools.Definitions(), s.opts.Workspace.Path)
}

// startServices starts, once, what runs beside the turns.
func (s *Session) startServices() {
	s.serving.Do(func() {
		s.patches.reportKilled()
		s.services.PushFunc(s.exec.EndBackground)
		s.services.PushFunc(s.users.serveCommands(s.ctx))
	})
}

// endServices ends them and waits for them. None can start afterwards.
func (s *Session) endServices() {
	s.serving.Do(func() {})
	_ = s.services.Close() // none fails
}

// Close cancels the running turn, takes everything down and returns the report, with the last
// turn's reason and answer and the whole session's usage. A second call returns the same
// report.
func (s *Session) Close() Report { return s.CloseFor("") }

// CloseFor is Close on behalf of the user with that label; "" is nobody.
func (s *Session) CloseFor(client string) Report {
	s.closed.Do(func() {
		cause := errClosed
		if client != "" {
			cause = &CancelledByUser{client}
		}
		t := s.turns.close(client)
		if t != nil {
			t.Cancel(cause)
		}
		s.calls.endAll()
		if t != nil {
			<-t.Done()
		}
		s.turns.mu.Lock()
		if err := s.turns.abandonUnfinished(); err != nil {
			s.log.Error("end turn", zap.Error(err)) // the last record fails too
		}
		s.turns.mu.Unlock()
		out, ended := s.turns.last, error(nil)
		switch {
		case s.turns.ended != nil:
			ended = s.turns.ended.cause
		case out.Reason == "":
			out, ended = s.users.endOutcome(context.Cause(s.ctx))
		}
		s.report = s.shutdown(out, ended)
		if s.opts.from != nil {
			_ = s.opts.Dir.Close() // a fork's directory is its own; an empty one left behind does no harm
		}
		s.unforced()
		s.end(errClosed)
	})
	return s.report
}

// Status is the state of a live session.
type Status struct {
	// Turn is the running turn, or "".
	Turn  string       `json:"turn,omitempty"`
	Turns int          `json:"turns"`
	Usage limits.Usage `json:"usage"` // of the turns that have ended
	// Last is how the last turn ended, or nil.
	Last *TurnReport `json:"last,omitempty"`
	// Attestation is the sandbox's, nil before it starts.
	Attestation *sandbox.Attestation `json:"attestation,omitempty"`
	Restarts    int                  `json:"restarts"`
	// Over is why no more turns can start, or "".
	Over string `json:"over,omitempty"`
}

// Status returns the current state of the session.
func (s *Session) Status() Status {
	st := s.turns.status()
	st.Attestation, st.Restarts, _ = s.sandbox.EndFacts()
	return st
}
