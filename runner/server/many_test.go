package server

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// TestManySessions runs 64 sessions at once, each with its own workspace,
// output and question. None sees another's.
func TestManySessions(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: \"write mark.txt x\"}}]\n  - text: Done.\n", func(o *Options) { o.MaxSessions = 64 })
	const n = 64
	ids := make([]string, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			dir := filepath.Join(w.root, "workspaces", fmt.Sprint(i))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Error(err)
				return
			}
			var s Session
			w.post("/sessions", fmt.Sprintf(`{"workspace":%q,"title":"number %d"}`, dir, i)).requireStatus(t, 201).decodeInto(t, &s)
			ids[i] = s.ID
			f := w.followEvents(s.ID, "")
			turn := w.startTurn(s.ID, "go")
			c := w.waitForConfirmation(s.ID, f)
			decision := []string{"allow", "deny"}[i%2]
			w.post("/sessions/"+s.ID+"/turns/"+turn+"/confirmations/"+c.ID, `{"decision":"`+decision+`"}`).requireStatus(t, 200)
			w.waitForTurn(s.ID, turn)
			if _, err := os.Stat(filepath.Join(dir, "mark.txt")); (err == nil) != (decision == "allow") {
				t.Errorf("number %d, %s: %v", i, decision, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	p := w.post("/sessions", fmt.Sprintf(`{"workspace":%q}`, w.dir)).requireProblem(t, 429, "sessions")
	if !strings.Contains(p.Detail, "64") {
		t.Errorf("how many there may be is not said: %s", p.Detail)
	}
	// Pages have the newest first, without a gap or a repetition.
	seen, before := map[string]bool{}, ""
	for range n {
		var page SessionList
		w.get("/sessions?limit=10&before="+before).requireStatus(t, 200).decodeInto(t, &page)
		for _, s := range page.Sessions {
			if seen[s.ID] || before != "" && s.ID >= before || s.State != StateIdle || !strings.HasPrefix(s.Title, "number ") {
				t.Errorf("listed: %+v behind %s", s, before)
			}
			seen[s.ID] = true
		}
		if before = page.Next; before == "" {
			break
		}
	}
	if len(seen) != n {
		t.Errorf("%d sessions are listed", len(seen))
	}
	for _, id := range ids {
		all.Go(func() { w.do(bobToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200) })
	}
	all.Wait()
	w.backend.RequireGone(t)
	for i, id := range ids {
		for _, r := range w.trace(id) {
			if r.Session != id {
				t.Errorf("session %d has a record of %s", i, r.Session)
			}
		}
	}
}

func TestIdsOfNothing(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSession("bind")
	none := "ses_00000000000000000000000000"
	for _, path := range []string{"", "/confirmations", "/events", "/diff", "/patch", "/turns/trn_00000000000000000000000000", "/values/x"} {
		for _, bad := range []string{none, "ses_", "x", strings.ToLower(id), id + "x", id[:len(id)-1], "%2e%2e", "..%2f" + id, id + "%00", "%0a" + id} {
			if a := w.get("/sessions/" + bad + path); a.status != 404 {
				t.Errorf("GET of %s: %d %s", bad+path, a.status, a.text)
			}
		}
	}
	for path, body := range map[string]string{"/turns": `{"message":"x"}`, "/apply": "{}", "/turns/trn_x/cancel": "", "/turns/trn_x/confirmations/" + strings.Repeat("0", 32): `{"decision":"allow"}`} {
		if a := w.post("/sessions/"+none+path, body); a.status != 404 {
			t.Errorf("POST to %s: %d %s", path, a.status, a.text)
		}
	}
	w.do(aliceToken, "DELETE", "/sessions/"+none, "").requireProblem(t, 404, "no_session")
	w.get("/sessions/"+id).requireStatus(t, 200)
}

// Sessions of the same user's other Caissons, on workspaces that this server
// does not serve, are not shown.
func TestSessionsOfOtherPlacesAreNotShown(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	id := w.startSession("bind")
	turn := w.startTurn(id, "go")
	w.waitForTurn(id, turn)
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	paths := []string{"", "/confirmations", "/events", "/diff", "/patch", "/turns/" + turn, "/values/x"}
	var list SessionList
	w.get("/sessions").requireStatus(t, 200).decodeInto(t, &list)
	if len(list.Sessions) != 1 { // the control
		t.Fatalf("listed %+v", list)
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	asked := ""
	w.serve(func(o *Options) { o.Shows = func(workspace string) bool { asked = workspace; return false } })
	w.get("/sessions").requireStatus(t, 200).decodeInto(t, &list)
	if len(list.Sessions) != 0 || asked != w.dir {
		t.Errorf("listed %+v, asked about %q", list, asked)
	}
	for _, path := range paths {
		w.get("/sessions/"+id+path).requireProblem(t, 404, "no_session")
	}
	for path, body := range map[string]string{"/turns": `{"message":"x"}`, "/apply": "{}", "/turns/" + turn + "/cancel": ""} {
		w.post("/sessions/"+id+path, body).requireProblem(t, 404, "no_session")
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireProblem(t, 404, "no_session")
	// The server's own sessions are shown before their traces name the
	// workspace.
	w.get("/sessions/"+w.startSession("bind")).requireStatus(t, 200)
}

func TestLongValuesCanBeHad(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: \"say "+strings.Repeat("long ", 20_000)+"\"}}]\n  - text: Done.\n")
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	var spilled []record.Spilled
	for len(spilled) == 0 {
		e, ok := f.nextEvent()
		if !ok {
			t.Fatal("no record has a long value")
		}
		if e.id != "" {
			spilled = record.SpilledValues(e.record(t))
		}
	}
	name := filepath.Base(spilled[0].Path)
	if a := w.get("/sessions/"+id+"/values/"+name).requireStatus(t, 200); len(a.text) != spilled[0].Bytes || !strings.Contains(a.text, "long long") {
		t.Errorf("the value has %d bytes, want %d", len(a.text), spilled[0].Bytes)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(sessiondir.Path(w.state, id), "spill", "link")); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"link", "..%2ftrace.jsonl", "%2e%2e", ".", "none", "a%2fb"} {
		if a := w.get("/sessions/" + id + "/values/" + bad); a.status != 404 {
			t.Errorf("value %s: %d %s", bad, a.status, a.text)
		}
	}
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	w.waitForTurn(id, turn)
}

// TestSlowReaders lets readers stop reading during a flood of output. The
// session and another reader go on, and what waits for the slow ones is
// bounded.
func TestSlowReaders(t *testing.T) {
	const flood = 64 << 20
	w := newTestEnv(t, fmt.Sprintf("  - calls: [{tool: shell, input: {command: \"flood %d\"}}]\n  - text: Done.\n", flood))
	w.policy = "sandboxed"
	id := w.startSession("bind")
	for range 8 {
		_, answer := w.dial(fmt.Sprintf("GET /sessions/%s/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", id, aliceToken))
		if line, err := answer.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
			t.Fatalf("stream: %q, %v", line, err)
		} // and it reads no more
	}
	live := w.server.sessions.liveSession(id)
	for live.feed.countReaders() < 8 {
		runtime.Gosched()
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	turn := w.startTurn(id, "go")
	if got := w.waitForTurn(id, turn); got.Answer != "Done." {
		t.Errorf("the turn ended as %+v", got)
	}
	live.feed.mu.Lock()
	for sub := range live.feed.subs {
		if sub.bytes > deltaBytes {
			t.Errorf("%d bytes wait for a reader", sub.bytes)
		}
	}
	live.feed.mu.Unlock()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("8 readers that don't read hold %d bytes of a flood of %d", grown, flood)
	}
}

// TestReaderThatIsDropped holds a write for longer than it may take.
func TestReaderThatIsDropped(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n")
	server, client := net.Pipe() // nothing is buffered: a write waits for its reader
	defer client.Close()
	st := httpserver.NewEventWriter(&deadlined{conn: server, limit: time.Now().Add(-time.Second)}, w.server.metrics.dropped.Inc)
	if err := st.Send([]byte("x")); err == nil {
		t.Error("a write that nobody reads succeeds")
	}
	if a := w.get("/metrics").requireStatus(t, 200); !strings.Contains(a.text, "caisson_event_streams_dropped_total 1") {
		t.Error("the reader is not counted as dropped")
	}
}

func TestStreamsOfAToken(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n", func(o *Options) { o.MaxStreams = 3 })
	id := w.startSession("bind")
	var open []*follower
	for range 3 {
		open = append(open, w.followEvents(id, ""))
	}
	w.get("/sessions/"+id+"/events").requireProblem(t, 429, "streams")
	// Another client has its own streams.
	req := w.do(bobToken, "GET", "/sessions/"+id+"/events?after=x", "")
	req.requireProblem(t, 400, "event_id")
	open[0].close()
	for w.openStreams() > 2 {
		runtime.Gosched()
	}
	w.followEvents(id, "").until(record.KindSessionCreated)
}

// TestClientsThatVanish connects 1,000 streams and cuts them, some before they
// were answered. Nothing of them stays.
func TestClientsThatVanish(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	id := w.startSession("bind")
	turn := w.startTurn(id, "go")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for i := range 50 {
				conn, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(conn, "GET /sessions/%s/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", id, aliceToken)
				if i%2 == 0 {
					_, _ = bufio.NewReader(conn).ReadString('\n')
				}
				_ = conn.Close()
			}
		})
	}
	all.Wait()
	live := w.server.sessions.liveSession(id)
	for live.feed.countReaders() > 0 {
		runtime.Gosched()
	}
	for w.openStreams() > 0 {
		runtime.Gosched()
	}
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	if got := w.waitForTurn(id, turn); got.Reason != "cancelled" {
		t.Errorf("the turn ended as %+v", got)
	}
}

func TestIdleSessionsEnd(t *testing.T) {
	w := newTestEnv(t, "  - text: Done.\n", func(o *Options) { o.IdleTime = 20 * time.Millisecond })
	id := w.startSession("bind")
	all := w.followEvents(id, "").rest()
	if last := all[len(all)-1]; last.name != "end" {
		t.Errorf("the last event is %+v", last)
	}
	w.backend.RequireGone(t)
}

// deadlined is a response whose deadline has always passed.
type deadlined struct {
	conn  net.Conn
	limit time.Time
}

func (d *deadlined) Header() http.Header         { return http.Header{} }
func (d *deadlined) WriteHeader(int)             {}
func (d *deadlined) Write(p []byte) (int, error) { return d.conn.Write(p) }
func (d *deadlined) FlushError() error           { return nil }

// SetWriteDeadline sets a deadline in the past.
func (d *deadlined) SetWriteDeadline(time.Time) error { return d.conn.SetWriteDeadline(d.limit) }

func (f *feed) countReaders() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs)
}
