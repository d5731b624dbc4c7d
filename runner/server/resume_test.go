package server

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/internal/history"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// TestStreamResumesBehindRetention follows a session that retention shortens
// meanwhile. A connected reader continues. One that reconnects after a removed
// record gets every remaining one, including the first.
func TestStreamResumesBehindRetention(t *testing.T) {
	w := newTestEnv(t, twoTurns)
	w.policy = "sandboxed"
	id := w.startSession("bind")
	w.waitForTurn(id, w.startTurn(id, "hello"))
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	reads := w.followEvents(id, "")
	reads.until(record.KindSessionCreated)
	whole := len(w.trace(id))
	report, err := sessiondir.Prune(t.Context(), sessiondir.PruneOptions{StateDir: w.state, Keep: time.Hour, Now: func() time.Time { return time.Now().Add(48 * time.Hour) }})
	if err != nil || len(report.Pruned) != 1 {
		t.Fatalf("shortened: %+v, %v", report, err)
	}
	if rest := reads.rest(); len(rest) != whole { // one was read before, and the end comes behind
		t.Errorf("who was reading got %d of %d records", len(rest), whole-1)
	}
	ids := func(after string) (out []int) {
		for _, e := range w.followEvents(id, after).rest() {
			if e.id != "" {
				n, err := strconv.Atoi(e.id)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, n)
			}
		}
		return out
	}
	left := ids("")
	if len(left) < 2 || len(left) == whole || left[len(left)-1] != whole {
		t.Fatalf("left are %v of %d", left, whole)
	}
	for after := 1; after < whole; after++ {
		behind := left[slices.IndexFunc(left, func(n int) bool { return n > after }):]
		if got := ids(strconv.Itoa(after)); !slices.Equal(got, behind) {
			t.Errorf("behind %d came %v, want %v", after, got, behind)
		}
	}
	w.do(aliceToken, "GET", "/sessions/"+id+"/events", "", "Last-Event-ID", strconv.Itoa(whole)).requireStatus(t, 204)
}

// HEAD is answered at once, without a stream.
func TestHeadOfAStream(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	id := w.startSession("bind")
	if a := w.do(aliceToken, http.MethodHead, "/sessions/"+id+"/events", "").requireStatus(t, 200); a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("headers %v", a.header)
	}
}

// TestManyShortSessions leaves no descriptor, goroutine or entry of ended
// sessions.
func TestManyShortSessions(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	round := func(n int) {
		for range n {
			id := w.startSession("bind")
			w.waitForTurn(id, w.startTurn(id, "go"))
			w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
	round(5)
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	round(60)
	// Connections and goroutines that are ending may take a moment.
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		now, running := descriptors(t), runtime.NumGoroutine()
		if now <= before+5 && running <= goroutines+5 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors became %d, %d goroutines %d", before, now, goroutines, running)
		}
	}
	sessions := len(w.server.sessions.listLive())
	streams := w.openStreams()
	if sessions != 0 || streams != 0 {
		t.Errorf("%d sessions and %d streams are kept", sessions, streams)
	}
	// Labels of metrics come from small sets, however many sessions there were.
	lines := 0
	for line := range strings.Lines(w.get("/metrics").requireStatus(t, 200).text) {
		if strings.HasPrefix(line, "caisson_") {
			lines++
		}
	}
	if lines > 200 {
		t.Errorf("%d metrics", lines)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestStreamOfASessionThatGoesOn follows a session that another process
// resumes: the stream goes on too, and a client that reconnects after
// session.ended is not sent away.
func TestStreamOfASessionThatGoesOn(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	id := w.startSession("bind")
	w.waitForTurn(id, w.startTurn(id, "go"))
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	records := len(w.trace(id))
	ended := strconv.Itoa(records)
	w.do(aliceToken, "GET", "/sessions/"+id+"/events", "", "Last-Event-ID", ended).requireStatus(t, 204) // control

	dir, err := sessiondir.Reopen(w.state, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	past, err := history.Read(dir.Path)
	if err != nil {
		t.Fatal(err)
	}
	back, all := w.followEvents(id, ended), w.followEvents(id, "")
	rec, err := record.NewRecorder(record.RecorderOptions{Dir: dir.Path, Session: id, After: &past.End})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []record.Payload{record.SessionResumed{}, record.SessionEnded{}} {
		if _, err := rec.Write(record.Entry{Actor: record.ActorTool, Payload: p}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(rec.Close(), dir.Close()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		stream *follower
		want   int
	}{"from the end": {back, 2}, "from the beginning": {all, records + 2}} {
		events := c.stream.rest()
		if len(events) != c.want+1 || events[len(events)-1].name != "end" || !strings.Contains(events[len(events)-1].data, `"ended"`) {
			t.Errorf("%s: %d events, want %d and the end: %v", name, len(events), c.want, events)
		}
	}
	w.do(aliceToken, "GET", "/sessions/"+id+"/events", "", "Last-Event-ID", strconv.Itoa(len(w.trace(id)))).requireStatus(t, 204)
}

// TestResumeSession resumes an ended session: one of two requests gets it, it
// keeps its ID, and its records are one chain. Changed records are refused.
func TestResumeSession(t *testing.T) {
	w := newTestEnv(t, twoTurns)
	w.policy = "sandboxed"
	id := w.startSession("bind")
	w.waitForTurn(id, w.startTurn(id, "hello"))
	w.post("/sessions/"+id+"/resume", `{}`).requireProblem(t, 409, "live")
	w.post("/sessions/"+id+"/turns", `{"continue":true}`).requireProblem(t, 409, "nothing")
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)

	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- w.post("/sessions/"+id+"/resume", `{}`) }()
	}
	won, lost := <-answers, <-answers
	if won.status != 200 {
		won, lost = lost, won
	}
	lost.requireProblem(t, 409, "live")
	var s Session
	won.requireStatus(t, 200).decodeInto(t, &s)
	if s.ID != id || s.State != StateIdle || s.Unfinished || s.Turns == nil || *s.Turns != 1 {
		t.Errorf("resumed %+v", s)
	}
	for _, body := range []string{`{}`, `{"continue":true,"message":"x"}`} {
		w.post("/sessions/"+id+"/turns", body).requireProblem(t, 422, "refused")
	}
	w.post("/sessions/"+id+"/turns", `{"continue":true,"limits":{"max_rounds":1}}`).requireProblem(t, 409, "nothing")
	w.waitForTurn(id, w.startTurn(id, "again"))
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	resumed := 0
	for _, r := range w.trace(id) {
		if r.Kind == record.KindSessionResumed {
			resumed++
		}
	}
	if resumed != 1 {
		t.Errorf("%d session.resumed", resumed)
	}
	path := filepath.Join(sessiondir.Path(w.state, id), record.TraceFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "hello", "hullo", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.post("/sessions/"+id+"/resume", `{}`).requireProblem(t, 409, "damaged")
	w.post("/sessions/ses_00000000000000000000000000/resume", `{}`).requireProblem(t, 404, "no_session")
}

// A client's approval for the session counts in its next turn, and is asked for
// again after the session was resumed.
func TestGrantsOfSessionLapse(t *testing.T) {
	var turns strings.Builder
	for n := range 3 {
		fmt.Fprintf(&turns, "  - calls: [{tool: write_file, input: {path: a.txt, content: \"%d\"}}]\n  - text: Done.\n", n)
	}
	w := newTestEnv(t, turns.String())
	id := w.startSession("bind")
	allow := func(f *follower, turn, scope string) {
		t.Helper()
		c := w.waitForConfirmation(id, f)
		w.post("/sessions/"+id+"/turns/"+turn+"/confirmations/"+c.ID, `{"decision":"allow","scope":"`+scope+`"}`).requireStatus(t, 200)
		w.waitForTurn(id, turn)
	}
	f := w.followEvents(id, "")
	allow(f, w.startTurn(id, "write"), "session")
	w.waitForTurn(id, w.startTurn(id, "write again"))
	if n := count(w.trace(id), record.KindConfirmationRequested); n != 1 {
		t.Errorf("%d questions in the session that allowed it", n)
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	last := len(w.trace(id))
	w.post("/sessions/"+id+"/resume", `{}`).requireStatus(t, 200)
	allow(w.followEvents(id, strconv.Itoa(last)), w.startTurn(id, "and again"), "once")
	if n := count(w.trace(id), record.KindConfirmationRequested); n != 2 {
		t.Errorf("%d questions after it was resumed, want 2", n)
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
}
