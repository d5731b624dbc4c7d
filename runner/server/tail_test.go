package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
	w := &testEnv{state: state}
	s, err := New(w.options())
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

// TestStreamsBeginAnywhere reconnects to a long session after every kind of
// record.
func TestStreamsBeginAnywhere(t *testing.T) {
	state := t.TempDir()
	n := writeLong(t, state, 3_000)
	r := newReader(t, state)
	places := []int{1, 2, 199, 700, 701, 702, 703, 704, 705, 1_501, n - 600, n - 2, n - 1}
	check := func(last int, places ...int) {
		t.Helper()
		for _, after := range places {
			got := r.behind(t.Context(), after, false)
			if len(got) != last-after || got[0] != after+1 || got[len(got)-1] != last {
				t.Errorf("%d records came after %d, want %d", len(got), after, last-after)
			}
		}
	}
	check(n, places...)

	path := filepath.Join(sessiondir.Path(state, longID), record.TraceFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, `{"seq":`...), 0o600); err != nil {
		t.Fatal(err)
	}
	check(n, places...)

	// A damaged line in the middle ends a stream that reaches it, and no other.
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines[n/2] = []byte("{}}\n")
	if err := os.WriteFile(path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, after := range []int{1, 2, 199, 700} {
		if got := r.behind(t.Context(), after, true); len(got) != 1 || got[0] != after+1 {
			t.Errorf("before the damage, %v came after %d", got, after)
		}
	}
	check(n, n-600, n-2, n-1)
}

// TestSeekBefore searches for records all over a long session.
func TestSeekBefore(t *testing.T) {
	state := t.TempDir()
	n := writeLong(t, state, 3_000)
	tail, err := openTail(sessiondir.Path(state, longID))
	if err != nil {
		t.Fatal(err)
	}
	defer tail.close()
	for seq := int64(1); seq <= int64(n)+50; seq += 47 {
		if err := tail.seekBefore(seq); err != nil {
			t.Fatal(err)
		}
		passed := 0
		for {
			e, ok, err := tail.nextEntry()
			if err != nil || ok && passed == 0 && e.Seq > seq {
				t.Fatalf("seek before %d: at %d, %v", seq, e.Seq, err)
			}
			if !ok || e.Seq >= seq {
				break
			}
			passed++
		}
		if passed > n/5 {
			t.Fatalf("seek before %d: %d records before it", seq, passed)
		}
	}
}

// BenchmarkReconnect reconnects at record 99,604 of 100,000.
func BenchmarkReconnect(b *testing.B) {
	state := b.TempDir()
	writeLong(b, state, 100_000)
	r := newReader(b, state)
	const after = 99_604
	var took []time.Duration
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		start := time.Now()
		got := r.behind(ctx, after, true)
		took = append(took, time.Since(start))
		cancel()
		if len(got) != 1 || got[0] != after+1 {
			b.Fatalf("behind %d came %v", after, got)
		}
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
}
