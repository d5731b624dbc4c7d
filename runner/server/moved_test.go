package server

import (
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/approval"
)

const hour = int64(time.Hour)

// TestWallClockMoves moves a server's wall clock while questions wait. The
// controls show that comparing expires_at, the time that clients are told, with
// that clock would be wrong each time.
func TestWallClockMoves(t *testing.T) {
	t.Run("forward", func(t *testing.T) {
		w := newTestEnv(t, asks)
		var c clocks
		w.clocked(&c, 10*time.Minute)
		denied, q := w.question()
		for _, ahead := range []int64{hour, -hour, 24 * hour, 3 * hour} { // ends ahead
			c.wall.Store(ahead)
			w.get("/healthz").requireStatus(t, 200)
		}
		if now := w.serverDate(); !now.After(q.Expires) || c.asked.Load() == 0 {
			t.Fatalf("the control: it is %s for the server, the question ends %s", now, q.Expires)
		}
		session, turn := of(denied)
		var list ConfirmationList
		w.get("/sessions/"+session+"/confirmations").requireStatus(t, 200).decodeInto(t, &list)
		if len(list.Confirmations) != 1 || w.made() {
			t.Fatalf("in its time %d questions wait, done is %t", len(list.Confirmations), w.made())
		}
		w.post(denied, `{"decision":"deny"}`).requireStatus(t, 200)
		w.waitForTurn(session, turn)
		if w.made() {
			t.Error("what was denied was done")
		}
		// An answer in time counts, wherever the clock goes meanwhile.
		allowed, _ := w.question()
		c.wall.Store(48 * hour)
		w.post(allowed, `{"decision":"allow"}`).requireStatus(t, 200)
		w.waitForTurn(of(allowed))
		if !w.made() {
			t.Error("what was allowed was not done")
		}
	})
	t.Run("back", func(t *testing.T) {
		w := newTestEnv(t, asks)
		var c clocks
		w.clocked(&c, 300*time.Millisecond)
		path, q := w.question()
		c.wall.Store(-hour)
		// Without an answer, the question ends by itself, and not an hour
		// later.
		w.waitForTurn(of(path))
		if now := w.serverDate(); !now.Before(q.Expires) {
			t.Fatalf("the control: it is %s for the server, the question ends %s", now, q.Expires)
		}
		w.timedOut(path)
	})
}

// TestMachineSleeps lets a machine sleep for an hour, which Go's clock does not
// notice, while a question waits. An answer then comes too late.
func TestMachineSleeps(t *testing.T) {
	w := newTestEnv(t, asks)
	var c clocks
	w.clocked(&c, 10*time.Minute)
	path, _ := w.question()
	c.boot.Store(hour)
	session, turn := of(path)
	var list ConfirmationList
	w.get("/sessions/"+session+"/confirmations").requireStatus(t, 200).decodeInto(t, &list)
	if len(list.Confirmations) != 0 {
		t.Errorf("after its time %d questions wait", len(list.Confirmations))
	}
	w.timedOut(path)
	w.waitForTurn(session, turn)
	w.timedOut(path)
	// Control: if the machine is awake, the same answer counts.
	path, _ = w.question()
	w.post(path, `{"decision":"allow"}`).requireStatus(t, 200)
	w.waitForTurn(of(path))
	if !w.made() {
		t.Error("what was allowed was not done")
	}
}

// timedOut answers a question whose time is over.
func (w *testEnv) timedOut(path string) {
	w.t.Helper()
	p := w.post(path, `{"decision":"allow","scope":"session"}`).requireProblem(w.t, 409, "resolved")
	if p.Resolution == nil || p.Resolution.Decision != approval.DecisionTimeout {
		w.t.Errorf("what stands is %+v", p.Resolution)
	}
	if w.made() {
		w.t.Error("what nobody allowed in its time was done")
	}
}

// TestClockMovesAcrossARestart kills a server with an open question, and starts
// another one an hour earlier, or later. The end in the trace has not passed
// for the first, and has for the second; neither goes by it.
func TestClockMovesAcrossARestart(t *testing.T) {
	w := newTestEnv(t, asks)
	kill := w.clocked(&clocks{}, 10*time.Minute)
	path, q := w.question()
	kill()
	session, turn := of(path)
	before := len(w.trace(session))
	for _, ahead := range []int64{-hour, hour} {
		var c clocks
		c.wall.Store(ahead)
		kill := w.clocked(&c, 10*time.Minute)
		if now := w.serverDate(); now.Before(q.Expires) != (ahead < 0) {
			t.Fatalf("the control: it is %s for the server, the question ends %s", now, q.Expires)
		}
		var list ConfirmationList
		w.get("/sessions/"+session+"/confirmations").requireStatus(t, 200).decodeInto(t, &list)
		var got Turn
		w.get("/sessions/"+session+"/turns/"+turn).requireStatus(t, 200).decodeInto(t, &got)
		if len(list.Confirmations) != 0 || got.State != TurnInterrupted {
			t.Errorf("%d questions wait, the turn is %s", len(list.Confirmations), got.State)
		}
		for _, scope := range []string{"once", "always"} {
			w.post(path, `{"decision":"allow","scope":"`+scope+`"}`).requireProblem(t, 410, "ended")
		}
		records := w.trace(session)
		if len(records) != before || count(records, record.KindToolCalled) != 0 || w.made() {
			t.Errorf("%d records became %d, done is %t", before, len(records), w.made())
		}
		kill()
	}
	// Control: a question of the new server's own.
	var c clocks
	c.wall.Store(-hour)
	w.clocked(&c, 10*time.Minute)
	path, _ = w.question()
	w.post(path, `{"decision":"allow"}`).requireStatus(t, 200)
	w.waitForTurn(of(path))
	if !w.made() {
		t.Error("what was allowed was not done")
	}
}
