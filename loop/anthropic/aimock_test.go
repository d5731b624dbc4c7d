package anthropic_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/anthropic"
	"github.com/caisson-run/caisson/loop/internal/aimocktest"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
)

// TestModelServer tests the adapter, under the real loop, against a third-party mock:
// aimock, from npm. It replaces malformed arguments by none.
func TestModelServer(t *testing.T) {
	base := aimocktest.Start(t)
	sent := &wiretest.RecordingTransport{}
	newModel := func(thinking int64) loop.Model {
		m, err := anthropic.New(anthropic.Options{ModelOptions: loop.ModelOptions{Model: "claude-opus-4-5", BaseURL: base, APIKey: "test", HTTPClient: &http.Client{Transport: sent}}, ThinkingTokens: thinking})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	m := newModel(0)
	t.Run("two calls in one round", func(t *testing.T) { aimocktest.TestTwoCalls(t, base, m, true) })
	// With a budget, the server refuses a call without its reasoning before it.
	t.Run("reasoning", func(t *testing.T) {
		d := &wiretest.Dispatcher{}
		out, _ := aimocktest.RunTurn(t, newModel(2000), "think first", d, new(0))
		if out.Reason != loop.StopAnswered || out.Answer != "It is there." || len(d.Ran) != 1 {
			t.Errorf("reason %s, answer %q, %v; ran %v", out.Reason, out.Answer, out.Err, d.Ran)
		}
		for _, part := range []string{"EqQBCgIYAhIM", "RU5DUllQVEVE", `"budget_tokens":2000`} {
			if !strings.Contains(sent.Last, part) {
				t.Errorf("%s is not in the second request: %s", part, sent.Last)
			}
		}
	})
	aimocktest.TestFailures(t, m)
}
