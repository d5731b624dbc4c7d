package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/record"
)

// A turn takes lower limits than its session's, which hold only for it. Higher
// and unknown ones are refused before it begins.
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

func (w *testEnv) startTurnWithin(session, within string) string {
	w.t.Helper()
	var started Started
	w.post("/sessions/"+session+"/turns", `{"message":"go","limits":`+within+`}`).requireStatus(w.t, 202).decodeInto(w.t, &started)
	return started.Turn
}

// A cost limit is refused for a model whose price is unknown, and the turn does
// not begin.
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

type answeringModel struct{}

func (answeringModel) Complete(context.Context, loop.Request, func(loop.Delta)) (loop.Response, error) {
	return loop.Response{Message: loop.NewText(loop.RoleAssistant, "Done."), Usage: limits.Usage{InputTokens: 5, OutputTokens: 5}}, nil
}

func (answeringModel) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "fake", Model: "answering"}
}

// The ledger counts turns for the client that starts them, in whichever
// session.
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

// A limit of the whole session ends a turn with its stop reason and all of its
// usage, and with it the session. No turn begins after it, resumed or not. The
// control is the same session with a higher limit.
func TestSessionLimits(t *testing.T) {
	for name, c := range map[string]struct {
		within, ample limits.Budget
		limit         record.Limit // of the second turn
		usage         limits.Usage
	}{
		"calls": {
			limits.Budget{ToolCalls: new(int64(2))},
			limits.Budget{ToolCalls: new(int64(3))},
			record.Limit{Kind: limits.KindToolCalls, Limit: 1, Used: 1},
			limits.Usage{Rounds: 2, ToolCalls: 1, InputTokens: 90_000, OutputTokens: 30_000},
		},
		"tokens": {
			limits.Budget{Tokens: new(int64(118_000))},
			limits.Budget{Tokens: new(int64(1_000_000))},
			record.Limit{Kind: limits.KindTokens, Limit: 38_000, Used: 40_000},
			limits.Usage{Rounds: 1, InputTokens: 30_000, OutputTokens: 10_000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, "  - text: Never asked.\n")
			within := c.within
			w.opts = func(o *runner.Options) {
				o.Profiles = []loop.Profile{{Name: "m", Model: &callingModel{calls: []bool{true, false, true, true, false}}}}
				o.SessionBudget = within
			}
			id := w.startSession("bind")
			if turn := w.waitForTurn(id, w.startTurn(id, "one")); turn.Reason != string(loop.StopAnswered) {
				t.Fatalf("the first turn: %+v", turn)
			}
			turn := w.waitForTurn(id, w.startTurn(id, "two"))
			if turn.Reason != string(loop.StopLimit) || !turn.Truncated || turn.Limit == nil || *turn.Limit != c.limit || *turn.Usage != c.usage {
				t.Errorf("the turn that ends by the session's limit: %+v, limit %+v, usage %+v", turn, turn.Limit, turn.Usage)
			}
			turns := "/sessions/" + id + "/turns"
			for v := (Session{}); v.State != StateEnded; { // by itself
				v = Session{}
				w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &v)
			}
			var past Turn
			w.get(turns+"/"+turn.ID).requireStatus(t, 200).decodeInto(t, &past)
			if past.Limit == nil || *past.Limit != c.limit {
				t.Errorf("the same turn from its records: limit %+v", past.Limit)
			}
			w.post(turns, `{"message":"three"}`).requireProblem(t, 410, "ended")
			w.post("/sessions/"+id+"/resume", `{}`).requireStatus(t, 200)
			for _, body := range []string{`{"message":"three"}`, `{"continue":true}`} {
				if p := w.post(turns, body).requireProblem(t, 409, "over"); !strings.Contains(p.Detail, limits.CodeTripped) {
					t.Errorf("%s: %s", body, p.Detail)
				}
			}

			within = c.ample
			id = w.startSession("bind")
			for _, message := range []string{"one", "two"} {
				if turn := w.waitForTurn(id, w.startTurn(id, message)); turn.Reason != string(loop.StopAnswered) {
					t.Errorf("control: %+v", turn)
				}
			}
		})
	}
}

// callingModel counts 40,000 tokens for each answer. The answers for which
// calls is true have a tool call.
type callingModel struct{ calls []bool }

func (m *callingModel) Complete(_ context.Context, r loop.Request, _ func(loop.Delta)) (loop.Response, error) {
	response := loop.Response{Message: loop.NewText(loop.RoleAssistant, "Done."), Usage: limits.Usage{InputTokens: 30_000, OutputTokens: 10_000}}
	if m.calls[0] && len(r.Tools) > 0 {
		call := &loop.ToolUse{ID: fmt.Sprint("call_", len(m.calls)), Name: "list_dir", Input: json.RawMessage(`{}`)}
		response.Message.Blocks = append(response.Message.Blocks, loop.Block{ToolUse: call})
	}
	m.calls = m.calls[1:]
	return response, nil
}

func (*callingModel) Info() loop.ModelInfo { return loop.ModelInfo{Provider: "fake", Model: "calling"} }
