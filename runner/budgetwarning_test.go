package runner

import (
	"testing"

	"github.com/caisson-run/caisson/limits"
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
