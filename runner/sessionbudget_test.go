package runner

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// TestSessionBudget: turns share the session's limits. A turn gets what is left, and none begins
// without that.
func TestSessionBudget(t *testing.T) {
	const twice = "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: First.\n" +
		"  - calls: [{tool: shell, input: {command: echo}}]\n  - calls: [{tool: shell, input: {command: echo}}]\n  - text: Second.\n"
	b := newBench(t, twice)
	b.opts.SessionBudget = limits.Budget{ToolCalls: new(int64(2))}
	b.opts.Budget.ToolCalls = new(int64(2))
	s := b.opened()
	if first := startTurn(t, s, "one"); first.Reason != loop.StopAnswered {
		t.Errorf("the first turn: %+v", first)
	}
	if over := s.Status().Over; over != "" {
		t.Errorf("over with a call left: %s", over)
	}
	second := startTurn(t, s, "two")
	if second.Reason != loop.StopLimit || second.Limit == nil || second.Limit.Kind != limits.KindToolCalls || second.Limit.Limit != 1 {
		t.Errorf("the second turn, with one call left: %+v", second)
	}
	_, err := s.Start("three")
	trip, ok := errors.AsType[*limits.TrippedError](err)
	if !errors.Is(err, ErrOver) || !ok || trip.Breaker != limits.BreakerSessionCalls || !strings.Contains(s.Status().Over, limits.CodeTripped) {
		t.Errorf("a third turn: %v, status %q", err, s.Status().Over)
	}
	free := newBench(t, twice)
	free.opts.Budget.ToolCalls = new(int64(2))
	if second := func() TurnReport { s := free.opened(); startTurn(t, s, "one"); return startTurn(t, s, "two") }(); second.Reason != loop.StopAnswered {
		t.Errorf("control: the same without a session's budget: %+v", second)
	}
	b.opts.SessionBudget.Tokens = new(int64(0))
	_, err = Open(t.Context(), b.opts)
	if f, ok := errors.AsType[Fault](err); !ok || f.Kind != FaultInvalidLimits || !strings.HasPrefix(f.Error(), "session budget tokens is 0") {
		t.Errorf("a limit of zero: %v", err)
	}
}
