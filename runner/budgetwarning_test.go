package runner

import (
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
)

func TestBudgetWarningInWords(t *testing.T) {
	for _, tt := range []struct {
		warning record.BudgetWarning
		want    string
	}{
		{record.BudgetWarning{What: limits.KindTokens, Limit: 100, Used: 81}, "81 of 100 tokens used"},
		{record.BudgetWarning{What: limits.KindToolCalls, Limit: 10, Used: 8}, "8 of 10 tool calls used"},
		{record.BudgetWarning{What: limits.KindCost, Limit: 250_000, Used: 220_000}, "0.220000 of 0.250000 US dollars used"},
		{record.BudgetWarning{What: limits.KindWallTime, Limit: 90_000, Used: 75_500}, "1m15.5s of 1m30s of wall time used"},
	} {
		if got := tt.warning.String(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// TestCeilingHint checks that users are not told to wait for the next day for an amount that
// running requests hold.
func TestCeilingHint(t *testing.T) {
	until := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	for want, limit := range map[string]record.Limit{
		"It is free again at 2026-11-28 00:00 UTC. Wait until then, or raise that limit.":                                               {Used: 90, Until: &until},
		"What those requests don't use is free when they have ended, and all of it at 2026-11-28 00:00 UTC. Wait, or raise that limit.": {Used: 90, Reserved: 40, Until: &until},
	} {
		if got := FaultOf("ses_1", record.SessionEnded{Reason: loop.StopLimit, Limit: &limit}).Hint(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
