package trace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/net/html"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// failer is what tests, benchmarks and rapid have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// encodePayloads returns the lines of records.
func encodePayloads(t failer, payloads ...record.Payload) [][]byte {
	t.Helper()
	var kinds []record.Kind
	var raw [][]byte
	for _, p := range payloads {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("%v", err)
		}
		kinds, raw = append(kinds, p.Kind()), append(raw, text)
	}
	lines, err := encodeChain(kinds, raw)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return lines
}

func newMessage(role loop.Role, blocks ...loop.Block) record.Message {
	return record.Message{Role: role, Blocks: blocks}
}

func newText(text string) loop.Block { return loop.Block{Text: &loop.Text{Text: text}} }

func newCall(id, input string) loop.Block {
	return loop.Block{ToolUse: new(newToolUse(id, "shell", input))}
}

func newResult(id, text string) loop.Block {
	return loop.Block{ToolResult: &loop.ToolResult{ToolUseID: id, Content: []tools.Block{{Text: text}}}}
}

// drawPayload returns a record that can come at any place of a foreign trace.
// Few IDs make calls that are open for long, or completed twice.
func drawPayload(rt *rapid.T) record.Payload {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "call")
	word := rapid.SampledFrom([]string{"hay", "NEEDLE", "Straße", " "}).Draw(rt, "word")
	return rapid.SampledFrom([]record.Payload{
		record.TurnStarted{},
		newMessage(loop.RoleUser, newText(word)),
		newMessage(loop.RoleAssistant, newText(word), loop.Block{Thinking: &loop.Thinking{Text: "hm"}}, newCall(id, `{"command":"`+word+`"}`), newCall("e", `{}`)),
		record.ToolCalled{CallID: id, Name: "shell", Class: tools.ClassExecute, Summary: word},
		record.ToolCompleted{CallID: id, Name: "shell", Success: word == "hay"},
		record.ToolFailed{CallID: id, Name: "shell", Class: tools.ErrorUserDenied, Message: word},
		newMessage(loop.RoleTool, newResult(id, word)),
		newMessage(loop.RoleTool, newResult(id, word), newResult("e", "")),
		record.Warning{Message: word},
		record.Warning{Message: word},
		record.ModelCallStarted{ModelCall: loop.ModelCall{Round: 1}},
		record.ModelCallCompleted{ModelCall: loop.ModelCall{Round: 1}, Usage: limits.Usage{InputTokens: 7}},
		record.ModelCallFailed{Message: word},
		record.NetworkDenied{CallID: id, Host: word},
		record.NetworkClosed{CallID: id, Host: word, Sent: 1},
		record.NetworkClosed{CallID: id, Host: "other", Sent: 1},
		record.ConfirmationRequested{CallID: id, Name: "shell", ID: "q"},
		record.ConfirmationResolved{CallID: id, RequestID: "q", Decision: approval.DecisionDeny, Reason: word},
		record.UserCommandStarted{ExecID: id, Argv: []string{word}},
		record.UserCommandEnded{ExecID: id},
		record.SandboxStarted{Attestation: attestation(), StartMS: 3},
		record.TurnCompleted{Reason: loop.StopAnswered},
		record.SessionEnded{Reason: loop.StopAnswered, CostUSD: "0.01"},
		record.SessionResumed{SessionCreated: record.SessionCreated{Tools: []record.OfferedTool{{Name: "shell", Class: tools.ClassRead}}}},
	}).Draw(rt, "payload")
}

// omitLines replaces some lines, as retention does.
func omitLines(t failer, lines [][]byte, first, last int) [][]byte {
	t.Helper()
	r, err := record.Decode(lines[first])
	if err != nil {
		t.Fatalf("%v", err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(lines[last], []byte("\n")))
	o, err := record.EncodeOmission(record.Omission{First: r.Seq, Last: int64(last + 1), Prev: r.Prev, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return slices.Concat(lines[:first], [][]byte{append(o, '\n')}, lines[last+1:])
}

// TestIndexHasTheStepsOfTheSession compares the index of any session, at every
// stage of its growth, with what a reader of the whole session finds.
func TestIndexHasTheStepsOfTheSession(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{} // that the test has them
	rapid.Check(t, func(rt *rapid.T) {
		payloads := []record.Payload{record.SessionCreated{Task: "the task"}}
		for range rapid.IntRange(0, 100).Draw(rt, "records") {
			payloads = append(payloads, drawPayload(rt))
		}
		lines := encodePayloads(rt, payloads...)
		s := Session{ID: "ses_1", Dir: dir, Path: filepath.Join(dir, "copy.jsonl")}
		if rapid.Bool().Draw(rt, "pruned") {
			first := rapid.IntRange(0, len(lines)-1).Draw(rt, "first omitted")
			lines = omitLines(rt, lines, first, rapid.IntRange(first, len(lines)-1).Draw(rt, "last omitted"))
			s.Pruned, seen["pruned"] = true, true
		}
		if rapid.IntRange(0, 3).Draw(rt, "damaged") == 0 {
			n := rapid.IntRange(0, len(lines)-1).Draw(rt, "damage")
			lines[n] = append(bytes.Clone(lines[n][:len(lines[n])-2]), "!\n"...)
		}
		text := bytes.Join(lines, nil)
		ends := rapid.SliceOfN(rapid.IntRange(0, len(text)), 0, 2).Draw(rt, "sizes")
		slices.Sort(ends)
		x := NewIndex(s)
		x.most = rapid.IntRange(1, 8).Draw(rt, "steps of a chunk")
		if rapid.IntRange(0, 3).Draw(rt, "no states") == 0 {
			x.states = maxStates
		}
		seqs := rapid.SliceOfN(rapid.Int64Range(-1, 102), 3, 3).Draw(rt, "places")
		for _, end := range append(ends, len(text)) {
			if err := os.WriteFile(s.Path, text[:end], 0o600); err != nil {
				rt.Fatalf("%v", err)
			}
			if err := x.Extend(t.Context()); err != nil || !x.Whole() {
				rt.Fatalf("extend: whole %v, %v", x.Whole(), err)
			}
			checkIndex(rt, x, s, seqs)
		}
		seen["damaged"] = seen["damaged"] || x.Overview().Damage != ""
		for n, c := range x.chunks {
			seen["state"] = seen["state"] || n > 0 && c.state != nil
			seen["no state"] = seen["no state"] || c.state == nil
			seen["open at a boundary"] = seen["open at a boundary"] || n > 0 && c.state != nil && len(c.state.open) > 0
		}
	})
	for _, what := range []string{"pruned", "damaged", "state", "no state", "open at a boundary"} {
		if !seen[what] {
			t.Errorf("no session had: %s", what)
		}
	}
}

// checkIndex compares an index with the steps of the session.
func checkIndex(t failer, x *Index, s Session, seqs []int64) {
	t.Helper()
	same := func(what string, want, got any) {
		t.Helper()
		if reflect.DeepEqual(want, got) {
			return // much faster
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s (-session +index):\n%s", what, diff)
		}
	}
	var all, steps []Step
	line := newTimeline()
	over, err := walkSession(s, nil, func(s Step) { all = append(all, s); line.addStep(s) }, nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.Seq > b.Seq || b.Seq > a.Seq && b.Part != 0 || a.Seq == b.Seq && b.Part != a.Part+1 {
			t.Fatalf("step %s comes before %s", a.Anchor(), b.Anchor())
		}
	}
	chunks := x.Chunks()
	for n, c := range chunks {
		part, err := x.Steps(n)
		if err != nil || len(part) == 0 {
			t.Fatalf("chunk %d of %d: %d steps, %v", n, len(chunks), len(part), err)
		}
		same("chunk", Chunk{part[0].Seq, part[len(part)-1].Seq, len(part), part[0].Start}, c)
		if n < len(chunks)-1 && len(part) < x.most {
			t.Fatalf("chunk %d of %d has %d steps, want %d", n, len(chunks), len(part), x.most)
		}
		steps = append(steps, part...)
	}
	open := x.Open()
	same("steps", all[:len(all)-len(open)], steps)
	for i, o := range open {
		want := all[len(steps)+i]
		want.Seq, want.Part = o.Seq, o.Part // they aren't complete
		same("open call", want, o)
	}
	same("overview", over, x.Overview())
	if want, got := line.layOut(""), x.Timeline(""); !reflect.DeepEqual(want, got) {
		t.Fatalf("timeline %+v, want %+v", got, want)
	}
	for _, seq := range seqs {
		chunk, next, back, found := -1, int64(0), int64(0), int64(0)
		for n, c := range chunks {
			if chunk < 0 && c.Last >= seq {
				chunk = n
			}
		}
		var rest []Step
		for _, s := range steps {
			if s.Seq > seq {
				rest = append(rest, s)
			}
			if s.Failed && s.Seq > seq && next == 0 {
				next = s.Seq
			}
			if s.Failed && s.Seq < seq {
				back = s.Seq
			}
			if s.Seq > seq && found == 0 && strings.Contains(strings.ToLower(strings.Join(s.texts(), "\n")), "needle") {
				found = s.Seq
			}
		}
		same(fmt.Sprintf("find %d", seq), chunk, x.Find(seq))
		got, ok := x.Failure(seq, false)
		same(fmt.Sprintf("failure after %d", seq), []any{next, next != 0}, []any{got, ok})
		got, ok = x.Failure(seq, true)
		same(fmt.Sprintf("failure before %d", seq), []any{back, back != 0}, []any{got, ok})
		got, ok, err := x.Search(context.Background(), "nEEdle", seq)
		same(fmt.Sprintf("search after %d", seq), []any{found, found != 0, nil}, []any{got, ok, err})
		var after []Step
		for more := x.After(seq); len(more) > 0; more = x.After(more[len(more)-1].Seq) {
			after = append(after, more...)
		}
		same(fmt.Sprintf("after %d", seq), rest, after)
	}
}

// writeSession writes records and returns their session.
func writeSession(t testing.TB, lines ...[]byte) Session {
	t.Helper()
	s := Session{ID: "ses_1", Dir: t.TempDir()}
	s.ID = filepath.Base(s.Dir)
	s.Path = filepath.Join(s.Dir, record.TraceFile)
	if err := os.WriteFile(s.Path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func newWarnings(n int) []record.Payload {
	all := []record.Payload{record.SessionCreated{Task: "the task"}}
	for i := range n {
		all = append(all, record.Warning{Message: fmt.Sprintf("warning %d", i)})
	}
	return all
}

// Chunks end where the page can show them, however large the records are.
func TestChunksAreBounded(t *testing.T) {
	large := newWarnings(100)
	for i := range large[1:] {
		large[i+1] = record.Warning{Message: strings.Repeat("x", 60_000)}
	}
	open := newWarnings(500)
	open[1] = newMessage(loop.RoleAssistant, newCall("a", `{}`))
	for name, tc := range map[string]struct {
		payloads []record.Payload
		want     []int
	}{
		"many":           {newWarnings(250), []int{100, 100, 50}},
		"with a call":    {open, []int{200, 200, 99}},
		"large":          {large, []int{18, 18, 18, 18, 18, 10}},
		"nothing in it":  {newWarnings(0), nil},
		"exactly a part": {newWarnings(100), []int{100}},
	} {
		x := NewIndex(writeSession(t, encodePayloads(t, tc.payloads...)...))
		if err := x.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, c := range x.Chunks() {
			got = append(got, c.Steps)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: chunks of %v steps, want %v", name, got, tc.want)
		}
	}
}

// A foreign trace of calls that never end makes a small index: the calls are
// not kept for each chunk.
func TestOpenCallsAreNotKept(t *testing.T) {
	payloads := newWarnings(0)
	for i := range 2000 {
		payloads = append(payloads, newMessage(loop.RoleAssistant, newCall(fmt.Sprint(i), `{"x":"`+strings.Repeat("y", 5000)+`"}`)))
	}
	x := NewIndex(writeSession(t, encodePayloads(t, payloads...)...))
	x.most = 20
	if err := x.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, c := range x.chunks {
		if c.state != nil {
			kept += c.state.weight()
		}
	}
	if kept > maxStates || kept < maxStates/2 || len(x.chunks) < 40 {
		t.Errorf("%d chunks keep %d bytes, want at most %d", len(x.chunks), kept, maxStates)
	}
	if steps, err := x.Steps(len(x.chunks) - 2); err != nil || len(steps) < x.most {
		t.Errorf("%d steps, %v", len(steps), err)
	}
}

// A record that was changed after it was indexed is not shown.
func TestIndexVerifiesWhatItReadsAgain(t *testing.T) {
	s := writeSession(t, encodePayloads(t, newWarnings(500)...)...)
	x := NewIndex(s)
	if err := x.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func() (errs [2]error) {
		_, errs[0] = x.Steps(0)
		_, errs[1] = x.Steps(1)
		return errs
	}
	if errs := read(); errs != [2]error{} { // the control
		t.Fatal(errs)
	}
	text, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("W"), int64(bytes.Index(text, []byte("warning 7")))); err != nil {
		t.Fatal(err)
	}
	errs := read()
	if e, ok := errors.AsType[*Error](errs[0]); !ok || e.Reason != Unreadable || !strings.Contains(e.Error(), "no longer as they were: line 10: hash chain broken") || errs[1] != nil {
		t.Errorf("read again: %v", errs)
	}
	if _, _, err := x.Search(t.Context(), "warning 499", 0); err == nil {
		t.Error("a search in changed records finds something")
	}
	if err := x.Extend(t.Context()); err != nil || x.Overview().Damage != "" {
		t.Errorf("extend: %v, %q: only what is added is read", err, x.Overview().Damage)
	}
	for _, n := range []int{-1, 5} {
		if _, err := x.Steps(n); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("there is no part %d of 5", n)) {
			t.Errorf("chunk %d: %v", n, err)
		}
	}
}

// TestIndexBeginsAnew puts other records in the place of the ones that were
// read: of another session, fewer of the same, and those that retention leaves.
func TestIndexBeginsAnew(t *testing.T) {
	lines := encodePayloads(t, newWarnings(30)...)
	replace := func(t *testing.T, s Session, name string, lines [][]byte) {
		t.Helper()
		made := filepath.Join(s.Dir, "new")
		if err := errors.Join(os.WriteFile(made, bytes.Join(lines, nil), 0o600), os.Rename(made, filepath.Join(s.Dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, s Session) Session{
		"replaced": func(t *testing.T, s Session) Session {
			replace(t, s, record.TraceFile, encodePayloads(t, append(newWarnings(90), record.TurnStarted{})...))
			return s
		},
		"truncated": func(t *testing.T, s Session) Session {
			if err := os.Truncate(s.Path, int64(len(lines[0])+len(lines[1]))); err != nil {
				t.Fatal(err)
			}
			return s
		},
		"pruned": func(t *testing.T, s Session) Session {
			replace(t, s, record.AuditFile, omitLines(t, lines, 3, 20))
			if err := os.Remove(s.Path); err != nil {
				t.Fatal(err)
			}
			found, err := sessionInDir(s.Dir)
			if err != nil || !found.Pruned {
				t.Fatalf("%+v, %v", found, err)
			}
			return found
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := writeSession(t, lines...)
			x := NewIndex(s)
			x.most = 7
			if err := x.Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkIndex(t, x, s, []int64{0})
			s = change(t, s)
			if err := x.Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkIndex(t, x, s, []int64{0, 10, 40})
		})
	}
	s := writeSession(t, lines...)
	x := NewIndex(s)
	if err := errors.Join(x.Extend(t.Context()), os.Remove(s.Path)); err != nil {
		t.Fatal(err)
	}
	err := x.Extend(t.Context())
	if e, ok := errors.AsType[*Error](err); !ok || e.Reason != NoRecords || len(x.Chunks()) != 1 {
		t.Errorf("records that are gone: %v", err)
	}
}

// A session that goes on has not ended.
func TestResumedSessionHasNotEnded(t *testing.T) {
	lines := encodePayloads(t,
		record.SessionCreated{}, record.TurnStarted{}, record.SessionEnded{Reason: loop.StopAnswered, ExitStatus: runner.OutcomeDone},
		record.SessionResumed{}, record.TurnStarted{}, record.SessionEnded{Reason: loop.StopCancelled, ExitStatus: 1},
	)
	s := writeSession(t)
	x := NewIndex(s)
	for n, want := range []string{3: "answered", 4: "cut short", 5: "cut short", 6: "cancelled"} {
		if err := os.WriteFile(s.Path, bytes.Join(lines[:n], nil), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := x.Extend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o, err := Read(s, nil); err != nil || want != "" && o.Outcome() != want || x.Overview().Outcome() != o.Outcome() {
			t.Errorf("after %d records: %q, %v, in the index %q, want %q", n, o.Outcome(), err, x.Overview().Outcome(), want)
		}
	}
}

// hookContext calls hook whenever its error is asked for.
type hookContext struct {
	context.Context
	hook func()
}

func (c hookContext) Err() error {
	c.hook()
	return c.Context.Err()
}

// The beginning of a long session can be read before its end is known. A read
// that is cancelled goes on later.
func TestIndexAnswersWhileItReads(t *testing.T) {
	s := writeLongSession(t, 3000)
	x := NewIndex(s)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stop := errors.New("enough for now")
	early := 0
	hook := hookContext{ctx, func() {
		if chunks := x.Chunks(); len(chunks) > 1 && !x.Whole() {
			steps, err := x.Steps(0)
			if err != nil || len(steps) != chunks[0].Steps {
				t.Errorf("%d steps, %v", len(steps), err)
			}
			if early++; early == 2 {
				cancel(stop)
			}
		}
	}}
	if err := x.Extend(hook); !errors.Is(err, stop) || early < 2 || x.Whole() {
		t.Errorf("cancelled: %v, whole %v; the first chunk was read %d times before", err, x.Whole(), early)
	}
	if err := x.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkIndex(t, x, s, []int64{0, 1500})
	if _, _, err := x.Search(ctx, "nothing has this", 0); !errors.Is(err, stop) {
		t.Errorf("a cancelled search: %v", err)
	}
}

// TestIndexIsSafeForConcurrentUse reads from many sides while the session
// grows. Each follower gets each step once, in order.
func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	lines := encodePayloads(t, longSession(2000)...)
	s := writeSession(t, lines[0])
	x := NewIndex(s)
	x.most = 30
	done := make(chan struct{})
	var users sync.WaitGroup
	followed := make([][]Step, 4)
	for i := range followed {
		users.Go(func() {
			for last := false; ; {
				if err := x.Extend(t.Context()); err != nil {
					t.Error(err)
					return
				}
				seq := int64(0)
				if n := len(followed[i]); n > 0 {
					seq = followed[i][n-1].Seq
				}
				more := x.After(seq)
				followed[i] = append(followed[i], more...)
				if last && len(more) == 0 {
					return
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		})
	}
	users.Go(func() {
		for {
			for n := range x.Chunks() {
				if _, err := x.Steps(n); err != nil {
					t.Error(err)
				}
			}
			_, _, _, _ = x.Open(), x.Overview(), x.Timeline(""), x.Find(100)
			if _, _, err := x.Search(t.Context(), "never there", 0); err != nil {
				t.Error(err)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	f, err := os.OpenFile(s.Path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for rest := bytes.Join(lines[1:], nil); len(rest) > 0; {
		n := min(7000, len(rest)) // not at the ends of lines
		if _, err := f.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
		runtime.Gosched()
	}
	close(done)
	users.Wait()
	checkIndex(t, x, s, []int64{0, 700})
	var want []Step
	for n := range x.Chunks() {
		steps, err := x.Steps(n)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, steps...)
	}
	for _, got := range followed {
		if !reflect.DeepEqual(want, got) {
			t.Errorf("followed (-session +follower):\n%s", cmp.Diff(want, got))
		}
	}
}

// Each step of the page has an ID of its own, also if several are of one
// record, and is what StepView and Templates make.
func TestStepsOfAPage(t *testing.T) {
	s := writeSession(t, encodePayloads(t,
		record.SessionCreated{},
		newMessage(loop.RoleAssistant, newText("one"), newText("two"), newCall("tu_1", `{}`), newCall("tu_2", `{}`), newCall(`"><b>`, `{}`)),
		newMessage(loop.RoleTool, newResult("tu_1", "done")),
		record.TurnCompleted{},
		newMessage(loop.RoleAssistant, newCall("tu_3", `{}`)),
	)...)
	var page, alone bytes.Buffer
	over, err := HTML(&page, s)
	if err != nil {
		t.Fatal(err)
	}
	templates := Templates()
	if _, err := walkSession(s, nil, func(step Step) {
		if err := templates.ExecuteTemplate(&alone, "step", StepView(step, over.Begun, "")); err != nil {
			t.Error(err)
		}
	}, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page.Bytes(), alone.Bytes()) {
		t.Errorf("the page has other steps than\n%s", &alone)
	}
	doc, err := html.Parse(&alone)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for n := range doc.Descendants() {
		if n.Data == "li" {
			text := ""
			for _, a := range n.Attr {
				if a.Key == "id" || a.Key == "data-call" {
					text += " " + a.Val
				}
			}
			got = append(got, strings.TrimSpace(text))
		}
	}
	want := []string{"s2", "s2-1", "s3 tu_1", "s4 tu_2", `s4-1 "><b>`, "s4-2", "s5 tu_3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("IDs (-want +got):\n%s", diff)
	}
	if err := Templates().ExecuteTemplate(io.Discard, "step", StepView(Step{Kind: StepTurn}, time.Time{}, "")); err != nil {
		t.Errorf("templates after others were executed: %v", err)
	}
}

// longSession returns records of ordinary sizes: rounds of a model call with an
// answer, a call and its result.
func longSession(n int) []record.Payload {
	all := []record.Payload{record.SessionCreated{Task: "a long one", Tools: []record.OfferedTool{{Name: "shell", Class: tools.ClassExecute}}}}
	output := strings.Repeat("ok  \tshop/checkout\t0.004s and more of it\n", 20)
	for i := 0; len(all) < n; i++ {
		id := fmt.Sprintf("tu_%d", i)
		call := loop.ModelCall{Round: i + 1, Model: loop.ModelInfo{Provider: "openai", Model: "gpt-5"}}
		if i%50 == 0 {
			all = append(all, record.TurnStarted{}, newMessage(loop.RoleUser, newText("Go on with it, please.")))
		}
		all = append(all,
			record.ModelCallStarted{ModelCall: call},
			record.ModelCallCompleted{ModelCall: call, LatencyMS: 500, Usage: limits.Usage{InputTokens: 1000, OutputTokens: 70, CostMicroUSD: new(int64(2100))}},
			newMessage(loop.RoleAssistant, newText("I look at how the total is made, and at what the tests say of it."), newCall(id, `{"command":"go test ./checkout/..."}`)),
			record.ToolCalled{CallID: id, Name: "shell", Class: tools.ClassExecute, Summary: "go test ./checkout/..."},
			record.ToolCompleted{CallID: id, Name: "shell", Success: i%20 != 0, LatencyMS: 300, OutputBytes: len(output), Metadata: map[string]any{"exit_code": 0}},
			newMessage(loop.RoleTool, newResult(id, output)),
		)
		if i%50 == 49 {
			all = append(all, record.TurnCompleted{Reason: loop.StopAnswered})
		}
	}
	return all[:n]
}

func writeLongSession(t testing.TB, records int) Session {
	t.Helper()
	return writeSession(t, encodePayloads(t, longSession(records)...)...)
}

// liveHeap returns the bytes in use.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestIndexOfALongSessionIsSmall bounds the memory of an index. The control is
// that of all steps.
func TestIndexOfALongSessionIsSmall(t *testing.T) {
	s := writeLongSession(t, 10_000)
	const most = 2 << 20
	before := liveHeap()
	x := NewIndex(s)
	if err := x.Extend(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := liveHeap() - before
	if held > most || len(x.Chunks()) < 20 {
		t.Errorf("the index of %d chunks holds %d KiB", len(x.Chunks()), held>>10)
	}
	runtime.KeepAlive(x)
	before = liveHeap()
	var all []Step
	if _, err := walkSession(s, nil, func(s Step) { all = append(all, s) }, nil); err != nil {
		t.Fatal(err)
	}
	if held := liveHeap() - before; held < most {
		t.Errorf("all %d steps hold %d KiB: the test shows nothing", len(all), held>>10)
	}
	runtime.KeepAlive(all)
}

// BenchmarkIndex indexes 100,000 records, after a reader that keeps nothing has
// read them. first-ms is when the first chunk can be shown, chunk-ms how long
// any chunk takes to be read again, added-us how long one more record takes.
func BenchmarkIndex(b *testing.B) {
	const records = 100_000
	s := writeLongSession(b, records)
	var read, index, first, again, added time.Duration
	held := int64(0)
	n := 0
	for b.Loop() {
		n++
		at := time.Now()
		if _, err := Read(s, nil); err != nil {
			b.Fatal(err)
		}
		read += time.Since(at)
		before := liveHeap()
		x := NewIndex(s)
		at = time.Now()
		shown := time.Duration(0)
		if err := x.Extend(hookContext{b.Context(), func() {
			if shown == 0 && len(x.Chunks()) > 1 {
				shown = time.Since(at)
			}
		}}); err != nil {
			b.Fatal(err)
		}
		index += time.Since(at)
		first += shown
		held = liveHeap() - before
		at = time.Now()
		if _, err := x.Steps(len(x.Chunks()) / 2); err != nil {
			b.Fatal(err)
		}
		again += time.Since(at)
		at = time.Now()
		if err := x.Extend(b.Context()); err != nil {
			b.Fatal(err)
		}
		added += time.Since(at)
	}
	rate := func(d time.Duration) float64 { return float64(records*n) / d.Seconds() }
	milliseconds := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(n) }
	b.ReportMetric(rate(read), "read-records/s")
	b.ReportMetric(rate(index), "index-records/s")
	b.ReportMetric(milliseconds(first), "first-ms")
	b.ReportMetric(milliseconds(again), "chunk-ms")
	b.ReportMetric(milliseconds(added)*1000, "nothing-new-us")
	b.ReportMetric(float64(held>>10), "KiB")
}
