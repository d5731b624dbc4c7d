package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

const asks = `
  - calls: [{tool: shell, input: {command: "write out.txt hello"}}]
  - text: Done.
`

func payload[T any](t *testing.T, r record.Record) T {
	t.Helper()
	var p T
	if err := json.Unmarshal(r.Payload, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConfirmationShowsWhatIsExecuted(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: write_file, input: {path: \"a\\e[8mb.txt\", content: \"x\\u202ey\\n\"}}]\n  - text: Done.\n")
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	c := w.waitForConfirmation(id, f)
	if c.Turn != turn || c.Name != "write_file" || c.Class != tools.ClassWrite || !c.Hidden || !strings.Contains(c.Diff, "+") || len(c.Projected) != 1 || len(c.InputHash) != 64 {
		t.Errorf("asked %+v", c)
	}
	// The bytes on the wire have nothing that a terminal obeys, but still the
	// exact input.
	text := w.get("/sessions/" + id + "/confirmations").text
	if strings.ContainsAny(text, "\x1b\u202e") {
		t.Errorf("raw characters in %q", text)
	}
	exact, err := json.Marshal(c.Exact)
	if err != nil || !strings.Contains(string(exact), "\u202e") {
		t.Errorf("the exact input is %s, %v", exact, err)
	}
	var s Session
	w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &s)
	if s.Waiting != 1 || s.State != StateRunning {
		t.Errorf("a session that asks: %+v", s)
	}
	w.post("/sessions/"+id+"/turns/"+turn+"/confirmations/"+c.ID, `{"decision":"deny"}`).requireStatus(t, 200)
	w.waitForTurn(id, turn)
}

// A reason comes back, is recorded and reaches the model. One that can't be
// shown is refused, and the confirmation stays open.
func TestReasonOfADenial(t *testing.T) {
	w := newTestEnv(t, asks)
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	c := w.waitForConfirmation(id, f)
	path := "/sessions/" + id + "/turns/" + turn + "/confirmations/" + c.ID
	for _, bad := range []string{
		`{"decision":"deny","reason":"a\u001b[2J"}`, `{"decision":"deny","reason":"a\u202e"}`,
		`{"decision":"deny","reason":"` + strings.Repeat("x", approval.MaxReasonCharacters+1) + `"}`, `{"decision":"allow","reason":"fine"}`,
	} {
		if got := w.post(path, bad); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%.60s: %d", bad, got.status)
		}
	}
	reason := strings.Repeat("é", approval.MaxReasonCharacters-20) + " use\tmake\ntest"
	text, err := json.Marshal(map[string]string{"decision": "deny", "reason": reason})
	if err != nil {
		t.Fatal(err)
	}
	var got Resolution
	w.post(path, string(text)).requireStatus(t, 200).decodeInto(t, &got)
	if got.Reason != reason || got.Decision != approval.DecisionDeny {
		t.Errorf("%+v", got)
	}
	w.waitForTurn(id, turn)
	resolved, result := "", ""
	for _, r := range w.trace(id) {
		switch r.Kind {
		case record.KindConfirmationResolved:
			resolved = payload[record.ConfirmationResolved](t, r).Reason
		case record.KindMessage:
			if b := payload[record.Message](t, r).Blocks; b[0].ToolResult != nil {
				result = b[0].ToolResult.DenialReason
			}
		}
	}
	if resolved != reason || result != reason {
		t.Errorf("recorded %q and %q", resolved, result)
	}
}

// TestOneAnswerCounts lets two clients give contrary answers at the same
// moment, in parallel sessions.
func TestOneAnswerCounts(t *testing.T) {
	w := newTestEnv(t, asks)
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() { w.raceAnswers(t) })
	}
	all.Wait()
}

// raceAnswers starts a session and sends contrary answers of two clients at
// once.
func (w *testEnv) raceAnswers(t *testing.T) {
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	c := w.waitForConfirmation(id, f)
	path := "/sessions/" + id + "/turns/" + turn + "/confirmations/" + c.ID
	results := make(map[string]answer, 2)
	var mu sync.Mutex
	var both sync.WaitGroup
	gate := make(chan struct{})
	for decision, token := range map[string]string{"allow": aliceToken, "deny": bobToken} {
		both.Go(func() {
			<-gate
			a, err := send(t.Context(), http.DefaultClient, w.base, token, "POST", path, `{"decision":"`+decision+`"}`)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			results[decision] = a
		})
	}
	close(gate)
	both.Wait()
	winner, loser := "allow", "deny"
	if results["deny"].status == 200 {
		winner, loser = loser, winner
	}
	clients := map[string]string{"allow": "http:alice", "deny": "http:bob"}
	var got Resolution
	results[winner].requireStatus(t, 200).decodeInto(t, &got)
	p := results[loser].requireProblem(t, 409, "resolved")
	want := Resolution{Confirmation: c.ID, Turn: turn, CallID: c.CallID, Decision: approval.Decision(winner), Scope: approval.ScopeOnce, By: "user", Client: clients[winner]}
	if got != want || p.Resolution == nil || *p.Resolution != want {
		t.Errorf("the first answer is told as %+v, the second as %+v, want %+v", got, p.Resolution, want)
	}
	w.waitForTurn(id, turn)
	records := w.trace(id)
	if count(records, record.KindConfirmationResolved) != 1 || count(records, record.KindConfirmationAttempted) != 1 {
		t.Errorf("%d decisions and %d attempts are recorded", count(records, record.KindConfirmationResolved), count(records, record.KindConfirmationAttempted))
	}
	ran := 0
	for _, r := range records {
		switch r.Kind {
		case record.KindConfirmationResolved:
			if p := payload[record.ConfirmationResolved](t, r); string(p.Decision) != winner || p.Client != clients[winner] {
				t.Errorf("recorded is %+v", p)
			}
		case record.KindConfirmationAttempted:
			if p := payload[record.ConfirmationAttempted](t, r); string(p.Decision) != loser || p.By != clients[loser] || string(p.Recorded) != winner {
				t.Errorf("the attempt is recorded as %+v", p)
			}
		case record.KindToolCalled:
			ran++
		}
	}
	if want := map[string]int{"allow": 1, "deny": 0}[winner]; ran != want {
		t.Errorf("%s won, and the call ran %d times", winner, ran)
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
}

// Answers with a wrong ID or at a wrong time don't count. Then the right one
// does.
func TestAnswersThatDontCount(t *testing.T) {
	w := newTestEnv(t, asks)
	mine, other := w.startSession("bind"), w.startSession("bind")
	f, g := w.followEvents(mine, ""), w.followEvents(other, "")
	turn, otherTurn := w.startTurn(mine, "go"), w.startTurn(other, "go")
	c, d := w.waitForConfirmation(mine, f), w.waitForConfirmation(other, g)
	at := func(session, turn, id string) string {
		return "/sessions/" + session + "/turns/" + turn + "/confirmations/" + id
	}
	const allow = `{"decision":"allow","scope":"always"}`
	guessed := strings.Repeat("0", 32)
	for name, path := range map[string]string{
		"another session's question": at(mine, turn, d.ID),
		"another session":            at(other, turn, c.ID),
		"another turn":               at(mine, otherTurn, c.ID),
		"no turn":                    at(mine, "trn_x", c.ID),
		"a guessed id":               at(mine, turn, guessed),
		"the call's id":              at(mine, turn, c.CallID),
		"capitals":                   at(mine, turn, strings.ToUpper(c.ID)),
		"a path":                     at(mine, turn, "..%2f"+c.ID),
	} {
		if a := w.post(path, allow); a.status != 404 {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	for name, body := range map[string]string{
		"no decision": `{}`, "timeout": `{"decision":"timeout"}`, "other": `{"decision":"yes"}`, "capitals": `{"decision":"ALLOW"}`,
		"twice": `{"decision":"deny","decision":"allow"}`, "folded": `{"deci\u017fion":"allow"}`, "cased": `{"Decision":"allow"}`,
		"unknown": `{"decision":"allow","force":true}`, "list": `["allow"]`, "empty": ``, "trailing": `{"decision":"allow"}{}`, "null": `null`, "scope": `{"decision":"allow","scope":"forever"}`,
	} {
		if a := w.post(at(mine, turn, c.ID), body); a.status != 400 && a.status != 422 {
			t.Errorf("body %s: %d %s", name, a.status, a.text)
		}
	}
	if ran := w.backend.commands(); len(ran) != 0 {
		t.Fatalf("ran %q without an answer", ran)
	}
	w.post("/sessions/"+mine+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	w.waitForTurn(mine, turn)
	if p := w.post(at(mine, turn, c.ID), allow).requireProblem(t, 409, "resolved"); p.Resolution.By != "cancel" {
		t.Errorf("after a cancellation: %+v", p.Resolution)
	}
	w.do(aliceToken, "DELETE", "/sessions/"+mine, "").requireStatus(t, 200)
	w.post(at(mine, turn, c.ID), allow).requireProblem(t, 410, "ended")
	if ran := w.backend.commands(); len(ran) != 0 {
		t.Fatalf("ran %q without an answer", ran)
	}
	// Control: the right ID in time.
	w.post(at(other, otherTurn, d.ID), `{"decision":"allow"}`).requireStatus(t, 200)
	w.waitForTurn(other, otherTurn)
	if ran := w.backend.commands(); len(ran) != 1 {
		t.Errorf("ran %q, want one command", ran)
	}
	var n int
	for _, r := range w.trace(mine) {
		if r.Kind == record.KindConfirmationAttempted {
			n++
			if p := payload[record.ConfirmationAttempted](t, r); p.By != "http:alice" {
				t.Errorf("recorded as %+v", p)
			}
		}
	}
	// All but three: the other session's, the path, which is no route, and the
	// one after the cancellation.
	if n != 7 {
		t.Errorf("%d attempts are recorded", n)
	}
}

func TestNobodyAnswers(t *testing.T) {
	w := newTestEnv(t, asks)
	w.opts = func(o *runner.Options) { o.ConfirmTimeout = 50 * time.Millisecond }
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	request := payload[record.ConfirmationRequested](t, f.until(record.KindConfirmationRequested)).ID
	f.close() // no client is connected any more
	if got := w.waitForTurn(id, turn); got.Reason != "answered" {
		t.Errorf("the turn ended %+v", got)
	}
	p := w.post("/sessions/"+id+"/turns/"+turn+"/confirmations/"+request, `{"decision":"allow"}`).requireProblem(t, 409, "resolved")
	if p.Resolution.Decision != approval.DecisionTimeout || p.Resolution.By != "timeout" {
		t.Errorf("after its time: %+v", p.Resolution)
	}
	if ran := w.backend.commands(); len(ran) != 0 {
		t.Errorf("ran %q", ran)
	}
}

// TestFloodOfAnswers sends 10,000 answers to unknown confirmations. The trace
// takes a bounded number of them, and the one open confirmation can still be
// answered.
func TestFloodOfAnswers(t *testing.T) {
	w := newTestEnv(t, asks)
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	c := w.waitForConfirmation(id, f)
	live := w.server.sessions.liveSession(id)
	got := map[int]int{}
	for i := range 10_000 {
		guess := fmt.Sprintf("%032x", i)
		switch i % 3 {
		case 1:
			guess = c.ID // with the wrong turn
		case 2:
			guess = strings.Repeat("\x1b", 1000) // what no question is called
		}
		_, err := live.confirmations.answerConfirmation(context.Background(), turn+strings.Repeat("x", i%3), guess, Answer{Decision: approval.DecisionAllow}, client{label: "mallory", roles: allRoles()})
		if p, ok := errors.AsType[*Problem](err); ok {
			got[p.Status]++
		}
	}
	if got[404] != 10_000 {
		t.Errorf("answered with %v", got)
	}
	w.post("/sessions/"+id+"/turns/"+turn+"/confirmations/"+c.ID, `{"decision":"allow"}`).requireStatus(t, 200)
	w.waitForTurn(id, turn)
	if ran := w.backend.commands(); len(ran) != 1 {
		t.Errorf("ran %q", ran)
	}
	// All are counted, but only a few have records.
	n, bytes := 0, 0
	for _, r := range w.trace(id) {
		if r.Kind == record.KindConfirmationAttempted {
			n, bytes = n+1, bytes+len(r.Payload)
		}
	}
	if n < 1_000 || n > 2_000 || bytes > n*2_000 {
		t.Errorf("%d attempts are recorded, with %d bytes", n, bytes)
	}
}

// Answers to no session are logged, and a flood of them does not fill the log.
func TestAnswersToNoSession(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	w := newTestEnv(t, asks, func(o *Options) { o.Logger = zap.New(core) })
	ended := w.startSession("bind")
	w.do(aliceToken, "DELETE", "/sessions/"+ended, "").requireStatus(t, 200)
	for _, c := range []struct {
		session, code string
		status        int
	}{{ended, "ended", 410}, {"ses_00000000000000000000000000", "no_session", 404}, {"x%1b[2J", "no_session", 404}} {
		path := "/sessions/" + c.session + "/turns/trn_x/confirmations/" + strings.Repeat("0", 32)
		w.post(path, `{"decision":"allow"}`).requireProblem(t, c.status, c.code)
		all := logged.TakeAll()
		if len(all) != 1 || all[0].ContextMap()["why"] != c.code || all[0].ContextMap()["client"] != "alice" || strings.Contains(fmt.Sprint(all[0].ContextMap()), "\x1b") {
			t.Errorf("%s: logged %+v", c.code, all)
		}
	}
	const flood = 5 * strayMost
	p, api := newProblem(404, "no_session", "none", ""), confirmationsAPI{w.server.sessions}
	for range flood {
		if err := api.logStray(t.Context(), "ses_x", "0", p); !errors.Is(err, p) {
			t.Fatal(err)
		}
	}
	if n := logged.Len(); n == 0 || n > 2*strayMost { // a minute may begin meanwhile
		t.Errorf("%d of %d are in the log", n, flood)
	}
	if a := w.get("/metrics").requireStatus(t, 200); !strings.Contains(a.text, fmt.Sprintf("caisson_confirmation_attempts_total %d\n", flood+3)) {
		t.Error("they are not all counted")
	}
}
