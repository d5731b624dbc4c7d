package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
)

const longID = "ses_01JD0000000000000000000000"

// writeLong writes a session of at least n records into a state directory, with
// session.ended at its end, and returns their number.
func writeLong(tb testing.TB, state string, n int) int {
	tb.Helper()
	dir := sessiondir.Path(state, longID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	rec, err := record.NewRecorder(record.RecorderOptions{Dir: dir, Session: longID})
	if err != nil {
		tb.Fatal(err)
	}
	written := 0
	put := func(actor record.Actor, p record.Payload) {
		if _, err := rec.Write(record.Entry{Turn: "trn_01JD0000000000000000000000", Actor: actor, Payload: p}); err != nil {
			tb.Fatal(err)
		}
		written++
	}
	put(record.ActorSystem, record.SessionCreated{Task: "a long task", Workspace: "/srv/work", Tools: []record.OfferedTool{}, Configuration: []record.Source{}})
	put(record.ActorUser, record.TurnStarted{})
	for round := 1; written < n-8; round++ {
		id := fmt.Sprintf("tu_%d", round)
		put(record.ActorAgent, record.ModelCallStarted{ModelCall: loop.ModelCall{Round: round}, Tools: 8})
		put(record.ActorAgent, record.ModelCallCompleted{ModelCall: loop.ModelCall{Round: round}, Finish: "tool_calls", ToolCalls: 1})
		put(record.ActorAgent, record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
			{Text: &loop.Text{Text: "I look at the next file, and run its test."}},
			{ToolUse: &loop.ToolUse{ID: id, Name: "shell", Input: json.RawMessage(`{"command":"go test ./store -run TestCart"}`)}},
		}})
		put(record.ActorAgent, record.ToolCalled{CallID: id, Name: "shell", Class: tools.ClassExecute, Rule: "sandboxed execute", Summary: "go test ./store"})
		put(record.ActorTool, record.ToolCompleted{CallID: id, Name: "shell", Success: true, OutputBytes: 40, FilesModified: []string{}})
		put(record.ActorTool, record.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: id, Content: []tools.Block{{Text: "ok  \texample.org/shop/store\t0.412s"}}}}}})
	}
	put(record.ActorSystem, record.TurnCompleted{Reason: loop.StopAnswered})
	put(record.ActorSystem, record.SessionEnded{Reason: loop.StopAnswered, Changed: []record.Changed{}, HostExecuted: []record.HostExecuted{}, Denials: []record.Denial{}})
	if err := rec.Close(); err != nil {
		tb.Fatal(err)
	}
	return written
}

// reader is a server that is only asked for streams.
type reader struct {
	tb     testing.TB
	server *Server
	base   string
}

func newReader(tb testing.TB, state string) *reader {
	tb.Helper()
	s, err := New(Options{
		StateDir: state, Tokens: []Token{{Label: "alice", Value: aliceToken}},
		PrepareSandbox: func(context.Context, NewSandbox) (runner.Options, func(), error) {
			return runner.Options{}, nil, errors.New("no sandboxes here")
		},
		Prepare: func(context.Context, NewSession) (runner.Options, func(), error) {
			return runner.Options{}, nil, errors.New("it only reads")
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	tb.Cleanup(func() {
		h.Close()
		if err := s.Close(nil); err != nil {
			tb.Error(err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return &reader{tb, s, h.URL}
}

// behind returns the IDs of the records after one; first ends the stream after
// the first of them.
func (r *reader) behind(ctx context.Context, after int, first bool) (ids []int) {
	r.tb.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", r.base+"/sessions/"+longID+"/events", nil)
	if err != nil {
		r.tb.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+aliceToken)
	req.Header.Set("Last-Event-ID", strconv.Itoa(after))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.tb.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		r.tb.Fatalf("behind %d: %s", after, res.Status)
	}
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		text, ok := strings.CutPrefix(in.Text(), "id: ")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			r.tb.Fatal(err)
		}
		if ids = append(ids, n); first {
			break
		}
	}
	return ids
}

func (r *reader) indexed() {
	r.tb.Helper()
	r.server.sessions.indexes.extendIndex(longID, sessiondir.Path(r.server.opts.StateDir, longID), false)
	for busy := true; busy; {
		time.Sleep(time.Millisecond)
		r.server.sessions.indexes.mu.Lock()
		busy = r.server.sessions.indexes.kept[longID].busy
		r.server.sessions.indexes.mu.Unlock()
	}
}

func (r *reader) checkpoint(after int) (seq int64, ok bool) {
	r.tb.Helper()
	t, err := openTail(sessiondir.Path(r.server.opts.StateDir, longID))
	if err != nil {
		r.tb.Fatal(err)
	}
	defer t.close()
	c, ok := r.server.sessions.indexes.checkpointBefore(longID, t.file, int64(after))
	return c.Seq, ok
}

// TestStreamsStartFromCheckpoints reconnects to a long session at every place,
// before it is indexed, after, and with a wrong index: the records are the
// same.
func TestStreamsStartFromCheckpoints(t *testing.T) {
	state := t.TempDir()
	n := writeLong(t, state, 3_000)
	r := newReader(t, state)
	places := []int{1, 2, 199, 700, 1_501, n - 600, n - 2, n - 1}
	want := map[int][]int{}
	check := func(when string) {
		t.Helper()
		for _, after := range places {
			got := r.behind(t.Context(), after, false)
			if when == "before" {
				want[after] = got
				if len(got) != n-after || got[0] != after+1 || got[len(got)-1] != n {
					t.Errorf("behind %d came %d records from %d", after, len(got), got[0])
				}
			}
			if !slices.Equal(got, want[after]) {
				t.Errorf("%s, %d records came behind %d, want %d", when, len(got), after, len(want[after]))
			}
		}
	}
	if _, ok := r.checkpoint(n); ok {
		t.Error("there is an index before anybody came")
	}
	check("before")
	r.indexed()
	if seq, ok := r.checkpoint(n - 1); !ok || n-int(seq) > 600 {
		t.Errorf("the checkpoint before the end is %d, %v", seq, ok)
	}
	check("indexed")

	// The same bytes in another file, as after retention.
	path := filepath.Join(sessiondir.Path(state, longID), record.TraceFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.checkpoint(n - 1); ok {
		t.Error("the index of another file is used")
	}
	check("replaced")
	r.indexed()

	// The same file, moved by one byte: each checkpoint leads into a line.
	if err := os.WriteFile(path, append([]byte(" "), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.checkpoint(n - 1); !ok {
		t.Error("the control: the index is gone")
	}
	check("moved")
}

// TestIndexesAreBounded uses more sessions than are kept, one of them live.
func TestIndexesAreBounded(t *testing.T) {
	state := t.TempDir()
	writeLong(t, state, 100)
	r := newReader(t, state)
	dir, x := sessiondir.Path(state, longID), r.server.sessions.indexes
	x.extendIndex("live", dir, true)
	for i := range 3 * keptIndexes {
		x.extendIndex(fmt.Sprint(i), dir, false)
	}
	x.mu.Lock()
	kept, live := len(x.kept), x.kept["live"] != nil
	x.mu.Unlock()
	if kept != keptIndexes+1 || !live {
		t.Errorf("%d are kept, the live one %v", kept, live)
	}
	x.releaseIndex("live")
	x.extendIndex("one more", dir, false)
	x.mu.Lock()
	kept = len(x.kept)
	x.mu.Unlock()
	if kept != keptIndexes {
		t.Errorf("%d are kept once the live session has ended", kept)
	}
}

// TestALiveSessionIsIndexed follows a session whose records are added while it
// lives.
func TestALiveSessionIsIndexed(t *testing.T) {
	var script strings.Builder
	for round := range 30 {
		script.WriteString("  - calls:\n")
		for i := range 8 {
			fmt.Fprintf(&script, "    - {tool: grep, input: {pattern: p%d-%d}}\n", round, i)
		}
	}
	script.WriteString("  - text: Done.\n")
	w := newTestEnv(t, script.String())
	id := w.startSession("bind")
	w.waitForTurn(id, w.startTurn(id, "go"))
	x := w.server.sessions.indexes
	x.mu.Lock()
	e := x.kept[id]
	x.mu.Unlock()
	if e == nil || !e.live {
		t.Fatalf("it is not indexed: %+v", e)
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	x.mu.Lock()
	defer x.mu.Unlock()
	if e.live {
		t.Error("it is indexed as live after its end")
	}
}

// BenchmarkReconnect reconnects at record 99,604 of 100,000, with and without
// an index.
func BenchmarkReconnect(b *testing.B) {
	state := b.TempDir()
	writeLong(b, state, 100_000)
	r := newReader(b, state)
	begun := time.Now()
	r.indexed()
	first := time.Since(begun)
	const after = 99_604
	var with, without []time.Duration
	for round := 0; b.Loop(); round++ {
		for _, linear := range []bool{false, true} {
			if linear {
				if round%10 != 0 {
					continue
				}
				r.server.sessions.indexes.dropIndex(longID)
			}
			ctx, cancel := context.WithCancel(b.Context())
			start := time.Now()
			got := r.behind(ctx, after, true)
			took := time.Since(start)
			cancel()
			if len(got) != 1 || got[0] != after+1 {
				b.Fatalf("behind %d came %v", after, got)
			}
			if linear {
				without = append(without, took)
				r.indexed()
			} else {
				with = append(with, took)
			}
		}
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(first), "first-index-ns")
	b.ReportMetric(float64(with[len(with)/2]), "p50-ns")
	b.ReportMetric(float64(without[len(without)/2]), "linear-p50-ns")
}
