package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

const twoTurns = `
  - calls: [{tool: shell, input: {command: "say hello"}}]
  - text: First.
  - text: Second.
`

func TestSessionFromItsStartToItsEnd(t *testing.T) {
	w := newTestEnv(t, twoTurns)
	w.policy = "sandboxed"
	id := w.startSession("bind")
	var s Session
	w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateIdle || s.Client != "http:alice" || s.Workspace != w.dir || s.Mode != "bind" || s.Policy != "sandboxed" || s.Backend != "fake" || *s.Turns != 0 {
		t.Errorf("begun as %+v", s)
	}
	first := w.waitForTurn(id, w.startTurn(id, "say hello\nand more"))
	second := w.waitForTurn(id, w.startTurn(id, "again"))
	if first.Answer != "First." || first.Reason != "answered" || first.Usage.ToolCalls != 1 || second.Answer != "Second." {
		t.Errorf("turns ended as %+v and %+v", first, second)
	}
	w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &s)
	if s.Title != "say hello …" || *s.Turns != 2 || s.Usage.Rounds != 3 || s.Attestation == nil || s.LastTurn.ID != second.ID {
		t.Errorf("idle as %+v", s)
	}
	s = Session{}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateEnded || s.Reason != "answered" || *s.Exit != 0 || *s.Turns != 2 || s.Usage.Rounds != 3 || s.Title != "say hello …" || s.Attestation == nil {
		t.Errorf("ended as %+v", s)
	}
	w.backend.RequireGone(t)
	// Another request gets the same, and it is in the list.
	var again Session
	w.do(bobToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200).decodeInto(t, &again)
	if diff := cmp.Diff(s, again); diff != "" {
		t.Errorf("ended again (-want +got):\n%s", diff)
	}
	var list SessionList
	w.get("/sessions").requireStatus(t, 200).decodeInto(t, &list)
	if len(list.Sessions) != 1 || list.Sessions[0].ID != id || list.Sessions[0].State != StateEnded || *list.Sessions[0].Turns != 2 {
		t.Errorf("listed as %+v", list)
	}
	var past Turn
	w.get("/sessions/"+id+"/turns/"+first.ID).requireStatus(t, 200).decodeInto(t, &past)
	first.Limit, past.WallMS = nil, first.WallMS
	if diff := cmp.Diff(first, past); diff != "" {
		t.Errorf("the turn from the trace (-live +past):\n%s", diff)
	}
	w.post("/sessions/"+id+"/turns", `{"message":"late"}`).requireProblem(t, 410, "ended")
}

// turn.started has the client's span. An invalid one is ignored, and the turn
// begins.
func TestTraceparent(t *testing.T) {
	w := newTestEnv(t, strings.Repeat("  - text: Done.\n", 5))
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	id := w.startSession("bind")
	var got []string
	for _, values := range [][]string{{parent}, {"cc" + parent[2:] + "-more"}, {"garbage\x80"}, {parent, parent}, nil} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.base+"/sessions/"+id+"/turns", strings.NewReader(`{"message":"go"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + aliceToken}, "Content-Type": {"application/json"}, "Traceparent": values}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var s Started
		if err := errors.Join(json.NewDecoder(res.Body).Decode(&s), res.Body.Close()); err != nil || res.StatusCode != http.StatusAccepted {
			t.Fatalf("%q: %s, %v", values, res.Status, err)
		}
		w.waitForTurn(id, s.Turn)
	}
	for _, r := range w.trace(id) {
		var p record.TurnStarted
		if r.Kind == record.KindTurnStarted {
			if err := json.Unmarshal(r.Payload, &p); err != nil {
				t.Fatal(err)
			}
			got = append(got, p.Traceparent)
		}
	}
	if want := []string{parent, parent, "", "", ""}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestOneTurnAtATime(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	id := w.startSession("bind")
	turn := w.startTurn(id, "hang")
	w.followEvents(id, "").until(record.KindToolCalled)
	var s Session
	w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateRunning || s.Turn != turn || s.Spent == nil || s.Usage.Rounds != 0 {
		t.Errorf("a running session: %+v", s)
	}
	p := w.post("/sessions/"+id+"/turns", `{"message":"another"}`).requireProblem(t, 409, "busy")
	if !strings.Contains(p.Detail, turn) {
		t.Errorf("which turn runs is not said: %s", p.Detail)
	}
	// Cancelling is idempotent, before and after the end.
	for range 3 {
		w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	}
	if got := w.waitForTurn(id, turn); got.Reason != "cancelled" {
		t.Errorf("ended %+v", got)
	}
	var got Turn
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200).decodeInto(t, &got)
	if got.State != TurnEnded || got.Reason != "cancelled" {
		t.Errorf("cancelled again: %+v", got)
	}
	w.post("/sessions/"+id+"/turns/trn_00000000000000000000000000/cancel", "").requireProblem(t, 404, "no_turn")
	if n := count(w.trace(id), record.KindTurnCancelled); n != 1 {
		t.Errorf("%d turns were cancelled", n)
	}
}

func TestStreamResumesWithoutLossOrRepetition(t *testing.T) {
	w := newTestEnv(t, twoTurns)
	w.policy = "sandboxed"
	id := w.startSession("bind")
	turn := w.startTurn(id, "hello")
	f := w.followEvents(id, "")
	// The connection is dropped after each record, at whatever time.
	var got []string
	last, deltas := "", 0
	for {
		e, ok := f.nextEvent()
		if !ok {
			f.close()
			f = w.followEvents(id, last)
			continue
		}
		if e.id == "" {
			if e.name == "delta" {
				deltas++
			}
			continue
		}
		got, last = append(got, e.id), e.id
		if r := e.record(t); r.Kind == record.KindTurnCompleted && r.Turn == turn {
			break
		}
		f.close()
		f = w.followEvents(id, last)
	}
	for i, id := range got {
		if id != strconv.Itoa(i+1) {
			t.Fatalf("records came as %v", got)
		}
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	// The live events, and the ones read afterwards, are the trace.
	var lines []string
	for _, e := range w.followEvents(id, "").rest() {
		if e.id != "" {
			lines = append(lines, e.data)
		} else if e.name != "end" || e.data != `{"state":"ended"}` {
			t.Errorf("an event of an ended session: %+v", e)
		}
	}
	text, err := os.ReadFile(filepath.Join(sessiondir.Path(w.state, id), record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(text)), "\n"), lines); diff != "" {
		t.Errorf("the stream is not the trace:\n%s", diff)
	}
	// ?after= is the same as the header, which wins.
	for path, first := range map[string]string{"?after=3": "4", "?after=0": "1"} {
		f := w.followEvents(id, path)
		if e, _ := f.nextEvent(); e.id != first {
			t.Errorf("%s begins with %s", path, e.id)
		}
	}
	w.do(aliceToken, "GET", "/sessions/"+id+"/events?after=1", "", "Last-Event-ID", strconv.Itoa(len(lines))).requireStatus(t, 204)
	for _, bad := range []string{"x", "-1", "1e3", "99999", "9223372036854775808"} {
		w.get("/sessions/"+id+"/events?after="+bad).requireProblem(t, 400, "event_id")
	}
}

func TestLiveOutputStandsWhereItCame(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	f.until(record.KindToolCalled)
	e, ok := f.nextEvent()
	if !ok || e.name != "delta" || e.id != "" || !strings.Contains(e.data, `"text":"so far\n"`) || !strings.Contains(e.data, `"stream":"stdout"`) {
		t.Errorf("behind tool.called came %+v", e)
	}
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	w.waitForTurn(id, turn)
	// It is never sent again.
	for _, e := range func() []event {
		w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
		return w.followEvents(id, "").rest()
	}() {
		if e.name == "delta" {
			t.Errorf("live output was replayed: %+v", e)
		}
	}
}

func TestServerStops(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	running, idle := w.startSession("bind"), w.startSession("bind")
	w.startTurn(running, "go")
	f := w.followEvents(running, "")
	f.until(record.KindToolCalled)
	g := w.followEvents(idle, "")
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	w.backend.RequireGone(t)
	for _, f := range []*follower{f, g} {
		all := f.rest()
		if last := all[len(all)-1]; last.name != "end" {
			t.Errorf("the stream ended with %+v", last)
		}
	}
	for _, id := range []string{running, idle} {
		records := w.trace(id)
		if last := records[len(records)-1]; last.Kind != record.KindSessionEnded {
			t.Errorf("the trace of %s ends with %s", id, last.Kind)
		}
	}
	if n := count(w.trace(running), record.KindTurnCancelled); n != 1 {
		t.Errorf("%d turns were cancelled", n)
	}
}
