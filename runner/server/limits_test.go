//go:build linux

package server

import (
	"context"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/ledger"
)

// TestTurnLimits checks that a turn takes limits below those of its session, holds them
// for itself alone, and refuses higher and unknown ones before it begins.
func TestTurnLimits(t *testing.T) {
	w := newTestEnv(t, strings.Repeat("  - calls: [{tool: list_dir, input: {}}]\n", 4)+"  - text: Done.\n")
	w.opts = func(o *runner.Options) {
		o.Budget = limits.Budget{Rounds: new(int64(10)), Tokens: new(int64(5000)), CostMicroUSD: new(int64(250_000))}
	}
	id := w.startSession("bind")
	path := "/sessions/" + id + "/turns"
	for body, want := range map[string]string{
		`{"max_rounds":11}`:          "limits.max_rounds: 11 is above the session's limit of 10",
		`{"max_tokens":5001}`:        "limits.max_tokens: 5001 is above the session's limit of 5000",
		`{"max_cost_usd":0.2500011}`: "limits.max_cost_usd: 0.250001 is above the session's limit of 0.250000",
	} {
		if p := w.post(path, `{"message":"go","limits":`+body+`}`).requireProblem(t, 422, "refused"); !strings.Contains(p.Detail, want) {
			t.Errorf("%s: %s", body, p.Detail)
		}
	}
	for _, body := range []string{`{"max_rounds":0}`, `{"max_rounds":-1}`, `{"max_rounds":1.5}`, `{"max_cost_usd":0}`, `{"max_cost_usd":1e300}`, `{"timeout_seconds":99999999999}`, `{"max_memory":1}`, `{"pids":5}`, `[]`} {
		w.post(path, `{"message":"go","limits":`+body+`}`).requireProblem(t, 422, "invalid")
	}
	if turn := w.waitForTurn(id, w.startTurnWithin(id, `{"max_rounds":1,"max_tool_calls":5,"timeout_seconds":3600}`)); turn.Reason != string(loop.StopLimit) || turn.Limit == nil || turn.Limit.Kind != limits.KindRounds || turn.Limit.Limit != 1 || turn.Usage.Rounds != 1 {
		t.Errorf("a turn of one round: %+v", turn)
	}
	// The next turn has the session's limits again.
	if turn := w.waitForTurn(id, w.startTurn(id, "go")); turn.Reason != string(loop.StopAnswered) || turn.Usage.Rounds < 2 {
		t.Errorf("a turn without limits of its own: %+v", turn)
	}
}

// startTurnWithin starts a turn with limits and returns its id.
func (w *testEnv) startTurnWithin(session, within string) string {
	w.t.Helper()
	var started Started
	w.post("/sessions/"+session+"/turns", `{"message":"go","limits":`+within+`}`).requireStatus(w.t, 202).decodeInto(w.t, &started)
	return started.Turn
}

// TestCostOfATurnNeedsAPrice checks that a limit of cost is refused for a model whose
// price is unknown, and the turn does not begin.
func TestCostOfATurnNeedsAPrice(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	w.opts = func(o *runner.Options) { o.Profiles = []loop.Profile{{Name: "free", Model: answeringModel{}}} }
	id := w.startSession("bind")
	p := w.post("/sessions/"+id+"/turns", `{"message":"go","limits":{"max_cost_usd":1}}`).requireProblem(t, 422, "refused")
	if !strings.Contains(p.Detail, "price of the model free") {
		t.Error(p.Detail)
	}
	if turn := w.waitForTurn(id, w.startTurn(id, "go")); turn.Reason != string(loop.StopAnswered) {
		t.Errorf("control, without it: %+v", turn)
	}
}

// answeringModel answers each request.
type answeringModel struct{}

func (answeringModel) Complete(context.Context, loop.Request, func(loop.Delta)) (loop.Response, error) {
	return loop.Response{Message: loop.NewText(loop.RoleAssistant, "Done."), Usage: limits.Usage{InputTokens: 5, OutputTokens: 5}}, nil
}

func (answeringModel) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "fake", Model: "answering"}
}

// TestCeilingsPerClient checks that the ledger counts turns for the client that starts
// them, in whichever session.
func TestCeilingsPerClient(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	w.opts = func(o *runner.Options) {
		o.Profiles = []loop.Profile{{Name: "m", Model: answeringModel{}}}
		counts, err := ledger.Open(t.Context(), ledger.Options{StateDir: w.state, User: limits.Ceilings{Day: limits.Ceiling{Requests: new(int64(2))}}})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = counts.Close() })
		o.Ledger = counts
	}
	one, other := w.startSession("bind"), w.startSession("bind")
	ask := func(token, session string) Turn {
		var started Started
		w.do(token, "POST", "/sessions/"+session+"/turns", `{"message":"go"}`).requireStatus(t, 202).decodeInto(t, &started)
		return w.waitForTurn(session, started.Turn)
	}
	for _, session := range []string{one, other} {
		if turn := ask(aliceToken, session); turn.Reason != string(loop.StopAnswered) {
			t.Fatalf("alice within her ceiling: %+v", turn)
		}
	}
	turn := ask(aliceToken, one)
	if turn.Reason != string(loop.StopLimit) || turn.Limit == nil || turn.Limit.Kind != limits.KindRequests || turn.Limit.Period != limits.PeriodDay || turn.Limit.Until == nil {
		t.Errorf("alice beyond her ceiling: %+v", turn)
	}
	if turn := ask(bobToken, one); turn.Reason != string(loop.StopAnswered) {
		t.Errorf("bob in the same session: %+v", turn)
	}
}
