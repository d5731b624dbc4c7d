package loop

import (
	"context"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// handleCalls runs the tool calls of a step and adds one result for each, in the
// order in which the model made them.
func (t *turn) handleCalls(ctx context.Context, s step) *ending {
	var failed *ending
	if len(s.run) > 0 {
		failed = t.dispatchCalls(ctx, s.run)
	}
	reason := "limit"
	switch s.refusal {
	case refusedNoTools:
		reason = "no_tools"
	case refusedTooMany:
		reason = "too_many_calls"
	}
	for _, u := range s.refuse {
		t.refuseCall(u, s.refusal, tools.ErrorPermissionDenied, reason)
	}
	if s.exceeded != nil {
		t.state.refusedBy = s.exceeded
	}
	t.emitWarnings()
	return failed
}

// dispatchCalls hands calls to the dispatcher. A dispatcher that leaves a result
// out, as it must not, can't leave a call without one.
func (t *turn) dispatchCalls(ctx context.Context, uses []ToolUse) *ending {
	calls := make([]tools.Call, 0, len(uses))
	maxBytes := t.maxResultBytes(len(uses))
	for _, u := range uses {
		calls = append(calls, tools.Call{
			ID: u.ID, Name: u.Name, Input: u.Input, InputError: u.InputError,
			Session: t.Session, Turn: t.Turn, ResultBytes: maxBytes,
		})
	}
	results, err := t.Dispatcher.Round(ctx, calls)
	byID := make(map[string]tools.Result, len(results))
	for _, r := range results {
		byID[r.CallID] = r
	}
	for _, u := range uses {
		r, ok := byID[u.ID]
		if !ok {
			t.log.Error("dispatcher gave no result", zap.String("call", u.ID), zap.String("tool", string(u.Name)))
			r = tools.Result{CallID: u.ID, Content: []tools.Block{{Text: refusedLost}}, IsError: true}
		}
		t.addResult(u.ID, r.Content, r.IsError)
	}
	t.meter.Add(limits.Usage{ToolCalls: int64(len(uses))})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return new(endingForCause(context.Cause(ctx)))
	}
	e := endingForCause(err)
	if e.reason == StopCancelled {
		// Nobody cancelled: the dispatcher failed in a way that has no name.
		e.reason = StopProviderFailed
	}
	return &e
}

// minResultBytes is the least that a result may hold, in bytes: below it the
// model learns nothing, and a window that is too full is shortened elsewhere.
const minResultBytes = 2000

// maxResultBytes is how many bytes one of n results may hold, so that together they
// take at most half of what the model's window has left; zero where the window
// is unknown.
func (t *turn) maxResultBytes(n int) int {
	if t.ContextWindow == 0 {
		return 0
	}
	left := t.ContextWindow - t.view.tokens - t.MaxOutputTokens
	return int(max(left/2*tokenBytes/int64(n), minResultBytes))
}

// refuseCall answers a call that never reaches the dispatcher.
func (t *turn) refuseCall(u ToolUse, message string, class tools.ErrorClass, reason string) {
	t.emit(CallRefused{CallID: u.ID, Name: u.Name, Class: class, Reason: reason, Message: message})
	t.addResult(u.ID, []tools.Block{{Text: message}}, true)
}

// addResult adds one tool message.
func (t *turn) addResult(id string, content []tools.Block, isError bool) {
	t.addMessage(Message{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{
		ToolUseID: id, Content: content, IsError: isError,
	}}}})
}
