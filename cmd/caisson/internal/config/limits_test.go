package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

// TestBudgets is that a turn's and a session's limits are kept apart, and that
// requirements and a workspace lower both.
func TestBudgets(t *testing.T) {
	c, err := loadFetch(t, "limits: {max_tokens: 10, timeout: 1m, session: {max_tokens: 100, timeout: 1h}}",
		"limits: {session: {max_tokens: 90, max_tool_calls: 5}}", "limits: {max_tokens: 20, session: {timeout: 30m, max_tool_calls: 7}}")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(limits.Budget{Rounds: new(int64(DefaultRounds)), Tokens: new(int64(10)), WallTime: new(time.Minute)}, c.Budget()); diff != "" {
		t.Errorf("a turn (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(limits.Budget{ToolCalls: new(int64(5)), Tokens: new(int64(90)), WallTime: new(30 * time.Minute)}, c.SessionBudget()); diff != "" {
		t.Errorf("a session (-want +got):\n%s", diff)
	}
	none, err := loadFetch(t, "", "", "")
	if err != nil || none.SessionBudget() != (limits.Budget{}) {
		t.Errorf("without anything: %+v, %v", none.SessionBudget(), err)
	}
}
