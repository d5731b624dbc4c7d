package config

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

// TestBudgets: a turn's and a session's limits are separate, and requirements and a
// workspace lower both.
func TestBudgets(t *testing.T) {
	c, err := loadFetch(t, "limits: {max_tokens: 10, max_cost_usd: 0.5, timeout: 1m, session: {max_tokens: 100, max_cost_usd: 3, timeout: 1h}}",
		"limits: {max_cost_usd: 0.6, session: {max_tokens: 90, max_cost_usd: 2.25, max_tool_calls: 5}}", "limits: {max_tokens: 20, max_cost_usd: 0.4, session: {timeout: 30m, max_tool_calls: 7}}")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(limits.Budget{Rounds: new(int64(50)), Tokens: new(int64(10)), CostMicroUSD: new(int64(400_000)), WallTime: new(time.Minute)}, c.Limits.Budget()); diff != "" {
		t.Errorf("a turn (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(limits.Budget{ToolCalls: new(int64(5)), Tokens: new(int64(90)), CostMicroUSD: new(int64(2_250_000)), WallTime: new(30 * time.Minute)}, c.Limits.Session.Budget()); diff != "" {
		t.Errorf("a session (-want +got):\n%s", diff)
	}
	none, err := loadFetch(t, "", "", "")
	if err != nil || none.Limits.Session.Budget() != (limits.Budget{}) {
		t.Errorf("without anything: %+v, %v", none.Limits.Session.Budget(), err)
	}
}

// TestUnknownPrice: a cost limit that can't be enforced is refused, for a run and a
// session. A price of 0 is known.
func TestUnknownPrice(t *testing.T) {
	for _, tt := range []struct{ name, text, where string }{
		{"run", "limits: {max_cost_usd: 1}\nmodel: openai/x", "limits.max_cost_usd"},
		{"session", "limits: {session: {max_cost_usd: 1}}\nmodel: openai/x", "limits.session.max_cost_usd"},
		{"no limit", "model: openai/x", ""},
		{"price", "limits: {max_cost_usd: 1}\nmodels: {m: {model: x, price: {input: 1, output: 2}}}\nmodel: m", ""},
		{"costs nothing", "limits: {max_cost_usd: 1}\nmodels: {m: {model: x, price: {input: 0, output: 0}}}\nmodel: m", ""},
		{"default model", "limits: {max_cost_usd: 1}\nmodel: openai/gpt-6.2-sol", ""},
		{"snapshot", "limits: {max_cost_usd: 1}\nmodel: openai/gpt-4.1-mini-2025-04-14", ""},
		{"unknown model", "limits: {max_cost_usd: 1}\nmodel: openai/gpt-5-of-others", "limits.max_cost_usd"},
		{"known model elsewhere", "limits: {max_cost_usd: 1}\nmodels: {m: {model: gpt-5, base_url: 'http://127.0.0.1:1'}}\nmodel: m", "limits.max_cost_usd"},
		{"fallback", "limits: {max_cost_usd: 1}\nmodels: {m: {model: gpt-5, fallback: [openai/unknown]}}\nmodel: m", "limits.max_cost_usd"},
		{"recording", "limits: {max_cost_usd: 1}\nmodel: replay/x.yaml", ""},
	} {
		c, err := loadFetch(t, tt.text, "", "")
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		_, err = c.SelectModels([]string{"OPENAI_API_KEY=k"})
		at, _ := errors.AsType[*Error](err)
		if (err == nil) != (tt.where == "") || at != nil && at.Where != tt.where {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestParseDollars(t *testing.T) {
	for text, want := range map[string]Dollars{"5": 5_000_000, "0.25": 250_000, "0.000001": 1, "1e3": 1_000_000_000} {
		if got, err := ParseDollars(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "0.0000001", "NaN", "Inf", "1e10", "$5", "5,00"} {
		if got, err := ParseDollars(text); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}
