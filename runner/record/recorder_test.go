package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
)

func sum256(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func newTestRecorder(t *testing.T, opts RecorderOptions) *Recorder {
	t.Helper()
	opts.Dir, opts.Session = t.TempDir(), "ses_01JD0000000000000000000000"
	r, err := NewRecorder(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func readTrace(t *testing.T, r *Recorder) Trace {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.opts.Dir, TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := ReadTrace(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestRecorderNumbersAndChainsConcurrentWrites(t *testing.T) {
	var mirrored []int64
	r := newTestRecorder(t, RecorderOptions{Mirror: func(rec Record, _ []byte) { mirrored = append(mirrored, rec.Seq) }})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if _, err := r.Write(Entry{Actor: ActorSystem, Payload: Warning{Message: "x"}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := r.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := len(readTrace(t, r).Records); got != 200 {
		t.Errorf("%d records, want 200", got)
	}
	for i, seq := range mirrored {
		if seq != int64(i+1) {
			t.Fatalf("mirror saw seq %d at place %d", seq, i)
		}
	}
}

func TestRecorderSpillsWhatDoesNotFit(t *testing.T) {
	long := strings.Repeat("é<\x1b", 40_000)
	many := make([]string, 20_000)
	for i := range many {
		many[i] = "short"
	}
	for name, tc := range map[string]struct {
		payload Payload
		pointer string
		want    string
	}{
		"one long string": {
			Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{Content: []tools.Block{{Text: long}}}}}},
			"/blocks/0/tool_result/content/0/text", long,
		},
		"inside an input": {
			Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{ToolUse: &loop.ToolUse{Input: json.RawMessage(`{"a/b~c":"` + strings.Repeat("y", 70_000) + `"}`)}}}},
			"/blocks/0/tool_use/input/a~1b~0c", strings.Repeat("y", 70_000),
		},
		"an input that is named as a picture is": {
			Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{ToolUse: &loop.ToolUse{Input: json.RawMessage(`{"tool_result":{"content":[{"image":"` + strings.Repeat("y", 70_000) + `"}]}}`)}}}},
			"/blocks/0/tool_use/input/tool_result/content/0/image", strings.Repeat("y", 70_000),
		},
		"a picture": {
			Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{Content: []tools.Block{{MediaType: "image/png", Image: make([]byte, 60_000)}}}}}},
			"/blocks/0/tool_result/content/0/image", strings.Repeat("A", 80_000),
		},
		"too many short ones": {ToolInputInvalid{CallID: "tu_1", Errors: many}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRecorder(t, RecorderOptions{})
			if _, err := r.Write(Entry{Actor: ActorTool, Payload: tc.payload}); err != nil {
				t.Fatal(err)
			}
			text, _ := os.ReadFile(filepath.Join(r.opts.Dir, TraceFile))
			if len(text) > MaxLineBytes {
				t.Errorf("line of %d bytes", len(text))
			}
			if err := readSchema(t).Validate(string(text)); err != nil {
				t.Error(err)
			}
			var moved struct{ Spilled []Spilled }
			if err := json.Unmarshal(readTrace(t, r).Records[0].Payload, &moved); err != nil || len(moved.Spilled) != 1 {
				t.Fatalf("spilled %v, %v", moved.Spilled, err)
			}
			rec := readTrace(t, r).Records[0]
			if tc.pointer != "" && DecodePayload(rec) == nil {
				t.Errorf("can't be decoded: %.200s", rec.Payload)
			}
			if shown := bytes.Contains(rec.Payload, []byte("bytes left out here")); tc.want != "" && shown != (name != "a picture") {
				t.Errorf("both ends are shown: %v", shown)
			}
			s := moved.Spilled[0]
			whole, err := os.ReadFile(filepath.Join(r.opts.Dir, s.Path))
			if err != nil {
				t.Fatal(err)
			}
			if s.Pointer != tc.pointer || s.Bytes != len(whole) || s.SHA256 != sum256(whole) {
				t.Errorf("reference %+v of %d bytes", s, len(whole))
			}
			if tc.want != "" && string(whole) != tc.want {
				t.Error("the file is not the value")
			}
		})
	}
}

func TestRecorderRedacts(t *testing.T) {
	const key = `sec"ret\value`
	shape := "sk-" + strings.Repeat("Zz9", 10)
	r := newTestRecorder(t, RecorderOptions{Secrets: []redact.Secret{{Name: "MY_KEY", Value: key}, {Name: "TINY", Value: "x"}}})
	text := "a " + key + " b " + shape + " x " + strings.Repeat("long ", 20_000) + key
	if _, err := r.Write(Entry{Actor: ActorTool, Payload: Warning{Message: text}}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(r.opts.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		got, err := os.ReadFile(path)
		quoted, _ := json.Marshal(key)
		for _, secret := range []string{key, strings.Trim(string(quoted), `"`), shape} {
			if bytes.Contains(got, []byte(secret)) {
				t.Errorf("%s holds %q", path, secret)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var got Warning
	if err := json.Unmarshal(readTrace(t, r).Records[0].Payload, &got); err != nil {
		t.Fatal(err)
	}
	if want := "a [redacted:MY_KEY] b [redacted:key] x long"; !strings.HasPrefix(got.Message, want) {
		t.Errorf("message begins %q, want %q", got.Message[:60], want)
	}
}

// TestRecorderSharesSyncs holds one sync up. Concurrent ones neither block a
// write nor end with the one under way, and share the next.
func TestRecorderSharesSyncs(t *testing.T) {
	r := newTestRecorder(t, RecorderOptions{})
	write := func() {
		if _, err := r.Write(Entry{Actor: ActorSystem, Payload: Warning{Message: "x"}}); err != nil {
			t.Error(err)
		}
	}
	entered, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	syncs := 0
	r.opts.Sync = func(f *os.File) error {
		if f != r.file {
			return nil // a folder
		}
		mu.Lock()
		syncs++
		first := syncs == 1
		mu.Unlock()
		if first {
			close(entered)
			<-release
		}
		return nil
	}
	write()
	var first, rest sync.WaitGroup
	first.Go(func() { _ = r.Sync() })
	<-entered
	write() // held up for good, if a write waited for the sync
	var early atomic.Int64
	for range 20 {
		rest.Go(func() {
			write()
			if err := r.Sync(); err != nil {
				t.Error(err)
			}
			early.Add(1)
		})
	}
	for {
		r.mu.Lock()
		all := r.seq == 22
		r.mu.Unlock()
		if all {
			break
		}
		runtime.Gosched()
	}
	if n := early.Load(); n != 0 {
		t.Errorf("%d syncs ended with one that began before their record", n)
	}
	close(release)
	first.Wait()
	rest.Wait()
	// One more if a writer came between, never one each.
	if mu.Lock(); syncs < 2 || syncs > 3 {
		t.Errorf("%d fsyncs for 22 records", syncs)
	}
	mu.Unlock()
	if r.synced != r.seq {
		t.Errorf("synced to %d of %d", r.synced, r.seq)
	}
}

// A failed sync fails for everybody who waited for it, and nothing is written
// after it.
func TestRecorderFailsAllOfAFailedSync(t *testing.T) {
	r := newTestRecorder(t, RecorderOptions{})
	r.opts.Sync = func(*os.File) error { return syscall.ENOSPC }
	if _, err := r.Write(Entry{Payload: Warning{}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := r.Sync(); !errors.Is(err, tools.ErrRecord) || !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("sync: %v", err)
			}
		})
	}
	wg.Wait()
	r.opts.Sync = (*os.File).Sync
	if _, err := r.Write(Entry{Payload: Warning{}}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write behind it: %v", err)
	}
	if err := r.Sync(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a second sync succeeded: %v", err)
	}
	if n := len(readTrace(t, r).Records); n != 1 {
		t.Errorf("%d records", n)
	}
}

// Values are synced before the line that names them, and the folders once.
func TestRecorderSyncsWhatItRefersTo(t *testing.T) {
	r := newTestRecorder(t, RecorderOptions{})
	var got []string
	r.opts.Sync = func(f *os.File) error {
		name, err := filepath.Rel(r.opts.Dir, f.Name())
		if strings.HasPrefix(name, SpillDir+"/rec_") {
			name = SpillDir + "/rec_"
		}
		got = append(got, name)
		return err
	}
	for range 2 {
		if _, err := r.Write(Entry{Payload: Warning{Message: strings.Repeat("long ", 20_000)}}); err != nil {
			t.Fatal(err)
		}
		if err := r.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"spill/rec_", "spill", "trace.jsonl", ".", "..", "spill/rec_", "spill", "trace.jsonl"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("synced (-want +got):\n%s", diff)
	}
}

func TestRecorderStopsAfterAFailure(t *testing.T) {
	r := newTestRecorder(t, RecorderOptions{})
	if err := r.file.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Write(Entry{Payload: Warning{}}); !errors.Is(err, tools.ErrRecord) {
			t.Errorf("write on a broken trace: %v", err)
		}
	}
	if err := r.Sync(); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("sync on a broken trace: %v", err)
	}
}

func TestReadTraceFindsDamage(t *testing.T) {
	whole := golden(t)
	lines := bytes.SplitAfter(bytes.TrimSuffix(whole, []byte("\n")), []byte("\n"))
	join := func(parts ...[]byte) []byte { return append(bytes.Join(parts, nil), '\n') }
	n := len(lines)
	for name, tc := range map[string]struct {
		text    []byte
		records int
		torn    bool
		broken  bool
	}{
		"whole":           {whole, n, false, false},
		"empty":           {nil, 0, false, false},
		"torn last line":  {whole[:len(whole)-10], n - 1, true, false},
		"only a newline":  {whole[:len(whole)-1], n - 1, true, false},
		"changed":         {bytes.Replace(whole, []byte("sh test.sh"), []byte("sh evil.sh"), 1), 3, false, true},
		"removed":         {join(lines[0], lines[2]), 1, false, true},
		"repeated":        {join(lines[0], lines[0]), 1, false, true},
		"swapped":         {join(lines[1], lines[0]), 0, false, true},
		"torn in between": {join(lines[0], []byte("{\n"), lines[1]), 1, false, true},
		"too long":        {append(bytes.Repeat([]byte("x"), MaxLineBytes+1), '\n'), 0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadTrace(bytes.NewReader(tc.text))
			if errors.Is(err, ErrChain) != tc.broken || (err != nil) != tc.broken {
				t.Errorf("error %v, want broken %v", err, tc.broken)
			}
			if diff := cmp.Diff([]any{tc.records, tc.torn}, []any{len(got.Records), got.Torn}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLinesAreCut: what Encode writes is decoded the quick way.
func TestLinesAreCut(t *testing.T) {
	for text := range bytes.Lines(golden(t)) {
		if _, ok := cutLine(bytes.TrimSpace(text)); !ok {
			t.Errorf("not cut: %s", text)
		}
	}
}

func FuzzDecode(f *testing.F) {
	lines := 0
	for text := range bytes.Lines(golden(&testing.T{})) {
		f.Add(bytes.TrimSpace(text))
		lines++
	}
	if lines == 0 {
		f.Fatal("empty seed corpus")
	}
	for _, odd := range []string{
		`{"schema_version":01,"seq":2,"id":"a","ts":"","session":"","turn":"","parent":"","actor":"user","kind":"x","payload":{},"prev":""}`,
		`{"schema_version":1,"seq":2,"id":"a","ts":"","session":"","turn":"","parent":"","actor":"user","kind":"x","payload":{},"seq":{},"prev":""}`,
		`{"schema_version":1,"seq":2,"id":"a","ts":"","session":"","turn":"","parent":"","actor":"user","kind":"x","payload":{"prev":"","prev":""}`,
	} {
		f.Add([]byte(odd))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if l, ok := cutLine(text); ok {
			var want line
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatalf("encoding/json refuses it: %v", err)
			}
			if diff := cmp.Diff(want, l); diff != "" {
				t.Error(diff)
			}
		}
		rec, err := Decode(text)
		if err != nil {
			return
		}
		out, err := Encode(rec)
		if err != nil {
			t.Fatalf("decoded but not encoded: %v", err)
		}
		again, err := Decode(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if diff := cmp.Diff(rec.Time, again.Time); diff != "" {
			t.Error(diff)
		}
	})
}

// TestSpilledValuesOfAForeignRecord: only files of the spill folder are read.
func TestSpilledValuesOfAForeignRecord(t *testing.T) {
	rec := Record{Payload: []byte(`{"spilled":[{"path":"other/a"},{"path":"../spill/a"},{"path":"/spill/a"},{"path":"spill/../../a"},{"path":"spill/a"},{"path":"a"}]}`)}
	if diff := cmp.Diff([]string{"spill/a"}, SpilledFiles(rec)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
