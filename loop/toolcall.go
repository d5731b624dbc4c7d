package loop

import (
	"context"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// handleCalls runs or refuses a step's tool calls and adds their results in order.
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

// dispatchCalls runs calls and adds their results. If the dispatcher returns no result
// for a call, it gets an error result.
func (t *turn) dispatchCalls(ctx context.Context, uses []ToolUse) *ending {
	calls := make([]tools.Call, 0, len(uses))
	maxBytes := t.maxResultBytes(len(uses))
	for _, u := range uses {
		calls = append(calls, tools.Call{
			ID: u.ID, Name: u.Name, Input: u.Input, InputError: u.InputError,
			Session: t.Session, Turn: t.Turn, ResultBytes: maxBytes,
		})
	}
	spending := newSpending(t)
	results, err := t.Dispatcher.Round(context.WithValue(ctx, spendingKey{}, spending), calls)
	byID := make(map[string]tools.Result, len(results))
	for _, r := range results {
		byID[r.CallID] = r
	}
	for _, u := range uses {
		r, ok := byID[u.ID]
		if !ok {
			t.log.Error("dispatcher returned no result", zap.String("call", u.ID), zap.String("tool", string(u.Name)))
			r = tools.Result{CallID: u.ID, Content: []tools.Block{{Text: refusedLost}}, IsError: true}
		}
		t.addMessage(resultMessage(ToolResult{ToolUseID: u.ID, Content: r.Content, IsError: r.IsError, DenialReason: r.DenialReason}))
	}
	t.meter.Add(limits.Usage{ToolCalls: int64(len(uses))})
	spending.chargeTo(&t.meter)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return new(endingForCause(context.Cause(ctx)))
	}
	e := endingForCause(err)
	if e.reason == StopCancelled {
		// Nothing was cancelled: the dispatcher failed with an unknown error.
		e.reason = StopProviderFailed
	}
	return &e
}

// minResultBytes is the smallest bound of a result. Less is of no use to the model; if
// the window is too full, old results are shortened instead.
const minResultBytes = 2000

// maxResultBytes returns the bound for each of n results, so that together they take at
// most half of what is left of the context window. It is 0 if the window is unknown.
func (t *turn) maxResultBytes(n int) int {
	if t.profile.ContextWindow == 0 {
		return 0
	}
	left := t.profile.ContextWindow - t.view.estimateTokens() - t.profile.MaxOutputTokens
	return int(max(left/2*tokenBytes/int64(n), minResultBytes))
}

func (t *turn) refuseCall(u ToolUse, message string, class tools.ErrorClass, reason string) {
	t.emit(CallRefused{CallID: u.ID, Name: u.Name, Class: class, Reason: reason, Message: message})
	t.addMessage(refusedResult(u, message))
}

// refusedResult returns the message with an error in place of a call's result.
func refusedResult(u ToolUse, message string) Message {
	return resultMessage(ToolResult{ToolUseID: u.ID, Content: []tools.Block{{Text: message}}, IsError: true})
}

func resultMessage(r ToolResult) Message {
	return Message{Role: RoleTool, Blocks: []Block{{ToolResult: &r}}}
}
