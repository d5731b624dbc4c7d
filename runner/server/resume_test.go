//go:build linux

package server

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// TestStreamResumesBehindRetention follows a session that retention shortens
// meanwhile: a connected reader continues, and one that comes back after a removed
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

// TestHeadOfAStream checks that HEAD is answered at once, without a stream.
func TestHeadOfAStream(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	id := w.startSession("bind")
	if a := w.do(aliceToken, http.MethodHead, "/sessions/"+id+"/events", "").requireStatus(t, 200); a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("headers %v", a.header)
	}
}

// TestManyShortSessions leaves nothing of those that have ended: no descriptor,
// no goroutine, no entry.
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
	w.server.streams.mu.Lock()
	streams := len(w.server.streams.open)
	w.server.streams.mu.Unlock()
	if sessions != 0 || streams != 0 {
		t.Errorf("%d sessions and %d streams are kept", sessions, streams)
	}
	// Labels of metrics are of small sets, however many sessions there were.
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
