package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// ToolCall is a tool call by a user, without the model.
type ToolCall struct {
	// Name is canonical or in the form for models. A nil Input is an empty object.
	Name  tools.Name
	Input json.RawMessage
	// Output receives the call's live output, possibly from several goroutines at once.
	// It must return at once. The text may contain secrets and terminal escapes. Nil
	// discards it.
	Output func(stream, text string)
}

// Call is [Session.CallTool] without live output.
func (s *Session) Call(ctx context.Context, name tools.Name, input json.RawMessage) (loop.ToolResult, error) {
	return s.CallTool(ctx, ToolCall{Name: name, Input: input})
}

// CallTool makes a tool call as [Options].User, without the model, and returns its result.
// Policy, approvals, sandbox and records are as for the model's calls. The model is not
// told of the call.
//
// Calls may be made at the same time. They are then ordered and bounded like the calls of
// one answer of a model, and form one turn, which ends with the last of them. If ctx ends,
// only this call is cancelled.
//
// The error is why there is no result. It wraps [ErrBusy] if a turn of the model runs, and
// [ErrOver] if the session is over.
func (s *Session) CallTool(ctx context.Context, c ToolCall) (loop.ToolResult, error) {
	s.mcp.waitTool(ctx, c.Name)
	t, budget, err := s.turns.joinCalls()
	if err != nil {
		return loop.ToolResult{}, err
	}
	callCtx, cancel := context.WithCancelCause(t.calls.ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	s.startServices()
	o := s.turnOptions(t, s.opts.User)
	o.Budget, o.Calls = budget, []loop.ToolUse{{Name: c.Name, Raw: string(c.Input)}}
	o.Emit = func(e loop.Event) error { // the turn's beginning and end are recorded once for all calls
		switch e.(type) {
		case loop.TurnStarted:
			return t.calls.startErr
		case loop.TurnEnded:
			return nil
		}
		return s.events.loopEvent(e)
	}
	o.NewID = func(prefix string) string {
		id := record.NewID(prefix)
		if prefix == "tu" && c.Output != nil {
			s.events.outputs.Store(id, c.Output)
		}
		return id
	}
	out, err := loop.Run(callCtx, o)
	if err != nil { // our options are invalid
		out = loop.Outcome{Reason: loop.StopProviderFailed, Err: err}
	}
	var result *loop.ToolResult
	if n := len(out.History); n > 0 {
		result = out.History[n-1].Blocks[0].ToolResult
	}
	if result != nil {
		s.events.outputs.Delete(result.ToolUseID)
	}
	s.turns.leaveCalls(t, out, context.Cause(callCtx))
	switch {
	case out.Err != nil:
		return loop.ToolResult{}, fmt.Errorf("call %s: %w", c.Name, out.Err)
	case out.Reason != loop.StopAnswered || result == nil:
		return loop.ToolResult{}, fmt.Errorf("call %s: it ended without a result: %s", c.Name, out.Reason)
	}
	return *result, nil
}

// OfferedTools returns the tools that [Options].User may use, sorted by name. The caller
// must not change them.
func (s *Session) OfferedTools() []tools.Definition { return s.tools.Definitions() }

// callTurn is a turn of concurrent calls. turns.mu guards all fields except ctx and
// startErr, which don't change.
type callTurn struct {
	ctx context.Context //nolint:containedctx // the contexts of the calls derive from it
	// startErr is why the start of the turn couldn't be recorded.
	startErr error
	open     int // number of running calls
	// outcome is the turn's outcome so far, and cause the cause of a cancellation.
	outcome loop.Outcome
	cause   error
}

// joinCalls begins a call, in the turn of the running calls or in a new one. It returns the
// call's budget.
func (v *turns) joinCalls() (*Turn, limits.Budget, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.running
	switch {
	case t == nil || t.calls == nil:
		t = &Turn{calls: &callTurn{}}
		if err := v.admit(t); err != nil {
			return nil, limits.Budget{}, err
		}
	case v.closing || v.ctx.Err() != nil:
		return nil, limits.Budget{}, fmt.Errorf("start call: %w: it is closed", ErrOver)
	default:
		if err := v.breaker.Check(limits.StepToolCall); err != nil {
			return nil, limits.Budget{}, fmt.Errorf("start call: %w: %w", ErrOver, err)
		}
	}
	budget := v.breaker.Turn(v.opts.Budget)
	v.breaker.Add(limits.Usage{ToolCalls: 1}) // before the next one begins
	if v.running == nil {
		t.calls.ctx = v.begin(t, v.opts.User)
		v.events.beginTurn(v.user.Name, "", record.ActorUser, func() record.TurnCancelled { return cancellationRecord(t.calls.cause) })
		t.calls.startErr = v.events.loopEvent(loop.TurnStarted{Turn: t.ID, Budget: budget})
	}
	t.calls.open++
	return t, budget, nil
}

// leaveCalls ends a call, and with the last one the turn.
func (v *turns) leaveCalls(t *Turn, out loop.Outcome, cause error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	charge := out.Usage
	charge.ToolCalls = max(charge.ToolCalls-1, 0) // joinCalls has counted one
	v.breaker.Add(charge)
	v.breaker.AddEstimate(out.Estimate)
	t.calls.addOutcome(out, cause)
	if t.calls.open--; t.calls.open > 0 {
		return
	}
	all := t.calls.outcome
	if err := cmp.Or(t.calls.startErr, v.events.loopEvent(loop.TurnEnded{
		Turn: t.ID, Reason: all.Reason, Truncated: all.Truncated, Usage: all.Usage, Wall: time.Since(t.begun),
	})); err != nil && all.Reason != loop.StopTraceUnwritable {
		all.Reason, all.Err = loop.StopTraceUnwritable, err
	}
	all.History = v.history
	t.cancel(nil)
	v.finish(t, all, t.calls.cause)
}

// addOutcome adds the outcome of one call and the cause with which its context ended. The
// turn takes the outcome of the first call that ended the run, otherwise that it was
// cancelled, otherwise of one that was answered. A call cancelled alone counts least.
func (c *callTurn) addOutcome(out loop.Outcome, cause error) {
	used, estimate := out.Usage, out.Estimate
	if c.outcome.Reason != "" {
		used, estimate = c.outcome.Usage.Plus(used), c.outcome.Estimate.Plus(estimate)
	}
	weight := func(r loop.StopReason) int {
		switch {
		case r == "":
			return 0
		case r == loop.StopCancelled && c.ctx.Err() == nil:
			return 1
		case r == loop.StopAnswered:
			return 2
		case r == loop.StopCancelled:
			return 3
		}
		return 4
	}
	if weight(out.Reason) > weight(c.outcome.Reason) {
		c.outcome, c.cause = out, cause
	}
	c.outcome.Usage, c.outcome.Estimate = used, estimate
}
