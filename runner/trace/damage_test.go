package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
)

// editedSession returns a session whose trace was changed by edit.
func editedSession(t *testing.T, edit func([]byte) []byte) Session {
	t.Helper()
	s := newShopSession(t, t.TempDir())
	text, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path, edit(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestReadersReportDamage reads traces in every condition with every reader.
// All report the same, none fails, and the records before the damage are there.
func TestReadersReportDamage(t *testing.T) {
	replace := func(old, by string) func([]byte) []byte {
		return func(text []byte) []byte { return bytes.Replace(text, []byte(old), []byte(by), 1) }
	}
	for name, tc := range map[string]struct {
		edit            func([]byte) []byte
		ok, ended, torn bool
		damage          string
		state           State
		outcome         string
	}{
		"whole":   {func(b []byte) []byte { return b }, true, true, false, "", StateEnded, "answered"},
		"changed": {replace(`"decision":"deny"`, `"decision":"allow"`), false, false, false, "prev is not the hash of the line before", StateEnded, "damaged"},
		"a line removed": {func(b []byte) []byte {
			l := bytes.SplitAfter(b, []byte("\n"))
			return bytes.Join(append(l[:5:5], l[6:]...), nil)
		}, false, false, false, "line 6: hash chain broken: seq 7, want 6", StateEnded, "damaged"},
		"cut at a line":   {func(b []byte) []byte { l := bytes.SplitAfter(b, []byte("\n")); return bytes.Join(l[:9], nil) }, true, false, false, "", StateCutShort, "cut short"},
		"cut in a line":   {func(b []byte) []byte { return b[:len(b)-40] }, true, false, true, "", StateCutShort, "cut short"},
		"a NUL in it":     {func(b []byte) []byte { return append(b[:2000:2000], append(make([]byte, 4096), b[2000:]...)...) }, false, false, false, "hash chain broken", StateEnded, "damaged"},
		"NULs at its end": {func(b []byte) []byte { return append(b, make([]byte, 4096)...) }, true, true, true, "", StateEnded, "answered"},
		"empty":           {func([]byte) []byte { return nil }, true, false, false, "", "", "cut short"},
		"no JSON":         {func([]byte) []byte { return []byte("hello\nworld\n") }, false, false, false, "line 1: hash chain broken: decode record", StateDamaged, "damaged"},
		"other JSON":      {func([]byte) []byte { return []byte("{\"role\":\"user\"}\n{}\n") }, false, false, false, "line 1: hash chain broken", StateDamaged, "damaged"},
		"one long line":   {func([]byte) []byte { return bytes.Repeat([]byte("x"), 1<<20) }, false, false, false, "longer than", StateDamaged, "damaged"},
		"a newer schema":  {replace(`"schema_version":1`, `"schema_version":9`), false, false, false, "schema version 9, this program reads 1", StateEnded, "damaged"},
		"records twice":   {func(b []byte) []byte { return append(b, b...) }, false, true, false, "seq 1, want", StateEnded, "damaged"},
		"a strange omission": {func(b []byte) []byte {
			return append(b, `{"omitted":{"first":1,"last":9,"prev":"","sha256":"<script>"}}`+"\n"...)
		}, false, true, false, "hash chain broken", StateDamaged, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			s := editedSession(t, tc.edit)
			v, err := Verify(s)
			if err != nil {
				t.Fatal(err)
			}
			if v.OK != tc.ok || v.Ended != tc.ended && tc.ok || v.Torn != tc.torn || !strings.Contains(v.Damage, tc.damage) || tc.damage == "" && v.Damage != "" {
				t.Errorf("verdict %+v", v)
			}
			list, err := List(filepath.Dir(filepath.Dir(s.Dir)), 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.state == "" && len(list) != 0:
				t.Errorf("a session without a record is listed: %+v", list[0])
			case tc.state != "" && (len(list) != 1 || list[0].State != tc.state || (list[0].Damage != "") != (tc.state == StateDamaged)):
				t.Errorf("listed as %+v, want %s", list, tc.state)
			}
			for what, write := range map[string]func(io.Writer, Session) (Overview, error){
				"show": func(w io.Writer, s Session) (Overview, error) { return Show(w, s, ShowOptions{}) },
				"html": HTML, "atif": ATIF, "lines": Lines, "json": JSON,
			} {
				var out bytes.Buffer
				over, err := write(&out, s)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				if over.Outcome() != tc.outcome || over.Records != v.Records || (over.Damage == "") != tc.ok || over.Torn != tc.torn {
					t.Errorf("%s: outcome %q, %d records of %d, damage %q, torn %v", what, over.Outcome(), over.Records, v.Records, over.Damage, over.Torn)
				}
				if tc.damage != "" && (what == "show" || what == "html" || what == "atif") && !strings.Contains(out.String(), "changed") {
					t.Errorf("%s does not say that the records were changed", what)
				}
				if what == "atif" || what == "json" {
					if !json.Valid(out.Bytes()) {
						t.Errorf("%s is no JSON", what)
					}
				}
			}
		})
	}
}

func TestVerifyComparesValues(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(path string) error
		want string
	}{
		"whole":   {func(string) error { return nil }, ""},
		"missing": {os.Remove, "can't be read"},
		"changed": {func(path string) error { return os.WriteFile(path, []byte("else"), 0o600) }, "was changed"},
		"longer": {func(path string) error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("x")
			return errors.Join(err, f.Close())
		}, "was changed"},
		"a folder": {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "is not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStrangeSession(t, t.TempDir())
			files, err := filepath.Glob(filepath.Join(s.Dir, "spill", "*"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			if err := tc.edit(files[0]); err != nil {
				t.Fatal(err)
			}
			v, err := Verify(s)
			if err != nil || v.Values != 1 || v.OK != (tc.want == "") || !strings.Contains(v.Damage, tc.want) {
				t.Errorf("verdict %+v, %v, want %q", v, err, tc.want)
			}
		})
	}
}

// A change of the patch or of the file of HTTP requests is damage.
func TestVerifyComparesFiles(t *testing.T) {
	const lines = `{"connection":1,"method":"GET","url":"https://a.test/","status":200,"received":1,"complete":true}` + "\n"
	for name, tc := range map[string]struct {
		hashed, has string // what session.ended has the hash of, and the file; "" for none
		ended       bool
		pruned      bool
		want        string
	}{
		"whole":            {lines, lines, true, false, ""},
		"none":             {"", "", true, false, ""},
		"changed":          {lines, strings.Replace(lines, "GET", "PUT", 1), true, false, "was changed"},
		"a line is added":  {lines, lines + lines, true, false, "was changed"},
		"emptied":          {lines, "\n", true, false, "was changed"},
		"removed":          {lines, "", true, false, "can't be read"},
		"forged":           {"", lines, true, false, "was added"},
		"pruned":           {lines, "", true, true, ""},
		"pruned and there": {lines, lines + lines, true, true, "was changed"},
		"not ended":        {"", lines, false, false, ""},
	} {
		for _, file := range []string{record.PatchFile, record.RequestsFile} {
			t.Run(name+" "+file, func(t *testing.T) {
				w := newWriter(t, t.TempDir())
				w.created("a task")
				if tc.ended {
					ended := record.SessionEnded{Reason: loop.StopAnswered, CostUSD: "unknown", Network: &record.NetworkTotals{Requests: 1}}
					if tc.hashed != "" {
						sum := sha256.Sum256([]byte(tc.hashed))
						hash := &ended.PatchSHA256
						if file == record.RequestsFile {
							hash = &ended.Network.RequestsSHA256
						}
						*hash = hex.EncodeToString(sum[:])
					}
					w.put(0, record.ActorSystem, ended)
				}
				if tc.has != "" {
					if err := os.WriteFile(filepath.Join(w.dir, file), []byte(tc.has), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				s := w.close()
				s.Pruned = tc.pruned
				v, err := Verify(s)
				if err != nil || v.OK != (tc.want == "") || !strings.Contains(v.Damage, tc.want) || v.Damage != "" && !strings.Contains(v.Damage, file) {
					t.Errorf("verdict %+v, %v, want %q", v, err, tc.want)
				}
			})
		}
	}
}

func TestFindSession(t *testing.T) {
	state := t.TempDir()
	first, second := newShopSession(t, state), newShopSession(t, state)
	common := 0
	for first.ID[common] == second.ID[common] {
		common++
	}
	for name, want := range map[string]string{
		first.ID: first.ID, second.ID: second.ID, first.ID[:common+1]: first.ID, strings.TrimPrefix(second.ID, "ses_")[:common-3]: second.ID,
		Last: max(first.ID, second.ID), first.Path: first.ID, first.Dir + "/": first.ID,
	} {
		if s, err := Find(state, name); err != nil || s.ID != want || s.Dir == "" {
			t.Errorf("%s is %+v, %v, want %s", name, s, err, want)
		}
	}
	for name, want := range map[string]string{
		"ses_9": "there is no session ses_9", "ses_": "2 sessions begin with ses_", "": "2 sessions begin with",
		"../x": "can't be read", "/none/trace.jsonl": "can't be read", state + "/": "has no records",
	} {
		_, err := Find(state, name)
		if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	if _, err := Find(filepath.Join(state, "none"), Last); err == nil || !strings.Contains(err.Error(), "no sessions yet") {
		t.Errorf("the last of none: %v", err)
	}
	if list, err := List(filepath.Join(state, "none"), 0, nil); err != nil || len(list) != 0 {
		t.Errorf("no state: %v, %v", list, err)
	}
}

// TestPipeIsRefused opens a named pipe, which would block forever.
func TestPipeIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, record.TraceFile)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Find(dir, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.openFile(); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("open: %v", err)
	}
}

func TestListIsNewestFirst(t *testing.T) {
	state := t.TempDir()
	var ids []string
	for range 3 {
		ids = append(ids, newShopSession(t, state).ID)
	}
	list, err := List(state, 2, nil)
	if err != nil || len(list) != 2 || list[0].Session < list[1].Session {
		t.Fatalf("%+v, %v", list, err)
	}
	want := Entry{
		State: StateEnded, Task: "The checkout adds the shipping twice for orders above 100 €. Find out why, mend it, and show that the tests pass.",
		Workspace: "/home/ada/shop", Model: "openai/gpt-5", Reason: "answered", ExitStatus: new(0), CostUSD: "0.023800", Records: list[0].Records,
	}
	if diff := cmp.Diff(want, list[0], cmpopts.IgnoreFields(Entry{}, "Session", "Begun", "Last", "WallMS", "Bytes")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if all, err := All(state); err != nil || len(all) != 3 || list[0].Records < 40 || list[0].WallMS < 1000 || ids[0] == "" {
		t.Errorf("%d sessions, %v, %+v", len(all), err, list[0])
	}
}

// TestHugeTracesAreReadInLittleMemory bounds the memory of reading a trace of
// 100 MB, and one of calls that never end.
func TestHugeTracesAreReadInLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes 100 MB")
	}
	if raceEnabled {
		t.Skip("one goroutine has no races, and the detector makes reading 100 MB take minutes")
	}
	writers := map[string]func(io.Writer, Session) (Overview, error){
		"html": HTML, "atif": ATIF,
		"verify": func(_ io.Writer, s Session) (Overview, error) { _, err := Verify(s); return Overview{}, err },
		"show":   func(w io.Writer, s Session) (Overview, error) { return Show(w, s, ShowOptions{Full: true}) },
	}
	for name, tc := range map[string]struct {
		make  func(w *writer)
		bytes int64
		what  []string
	}{
		"large": {func(w *writer) {
			text := strings.Repeat("a line of output that is not short at all\n", 1300)
			for i := range 1900 {
				w.put(0, record.ActorSystem, record.Warning{Message: text})
				if i%10 == 0 {
					id := fmt.Sprintf("tu_%d", i)
					w.model(i, time.Second, "I go on.", newToolUse(id, "shell", `{"command":"true"}`))
					w.called(id, "shell", tools.ClassExecute, "true")
					w.done(id, "shell", time.Millisecond, record.ToolCompleted{Success: true})
					w.result(id, text, false)
				}
			}
		}, 100 << 20, []string{"verify", "html"}},
		"calls that never end": {func(w *writer) {
			text := `{"x":"` + strings.Repeat("y", 30_000) + `"}`
			for i := range 500 {
				w.put(0, record.ActorAgent, record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{ToolUse: new(newToolUse(fmt.Sprint(i), "shell", text))}}})
			}
		}, 14 << 20, []string{"show", "html", "atif"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWriter(t, t.TempDir())
			w.created("a long one")
			tc.make(w)
			s := w.close()
			if info, err := os.Stat(s.Path); err != nil || info.Size() < tc.bytes*9/10 {
				t.Fatalf("%v, %v", info, err)
			}
			for _, what := range tc.what {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				out := &peak{}
				if _, err := writers[what](out, s); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				runtime.ReadMemStats(&after)
				// The heap is collected when it has twice the live memory.
				const most = 64 << 20
				if top := max(out.heap, after.HeapAlloc); top > before.HeapAlloc+most {
					t.Errorf("%s held %d MiB", what, (top-before.HeapAlloc)>>20)
				}
				if what == "html" && out.n > maxPage+(2<<20) {
					t.Errorf("a page of %d bytes", out.n)
				}
			}
		})
	}
}

// peak counts the bytes written, and notes the largest heap meanwhile.
type peak struct {
	n, noted int64
	heap     uint64
}

func (p *peak) Write(b []byte) (int, error) {
	p.n += int64(len(b))
	if p.n-p.noted > 1<<20 {
		p.noted = p.n
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		p.heap = max(p.heap, m.HeapAlloc)
	}
	return len(b), nil
}

// A live session is neither ended nor cut short.
func TestLiveSessionIsRead(t *testing.T) {
	state := t.TempDir()
	w := newWriter(t, state)
	w.created("still at it")
	w.put(0, record.ActorUser, record.TurnStarted{})
	s, err := Find(state, w.id)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Open(filepath.Join(w.dir, sessiondir.LogFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	check := func(live bool, state State, outcome string) {
		t.Helper()
		list, err := List(w.state, 0, nil)
		if err != nil || len(list) != 1 || list[0].State != state {
			t.Errorf("listed %+v, %v, want %s", list, err, state)
		}
		if v, err := Verify(s); err != nil || !v.OK || v.Live != live || v.Ended {
			t.Errorf("verdict %+v, %v", v, err)
		}
		var out bytes.Buffer
		over, err := Show(&out, s, ShowOptions{})
		if err != nil || over.Outcome() != outcome || strings.Contains(out.String(), "killed") == live {
			t.Errorf("outcome %s, %v\n%s", over.Outcome(), err, out.String())
		}
		var page bytes.Buffer
		if _, err := HTML(&page, s); err != nil || strings.Contains(page.String(), "The session runs") != live {
			t.Errorf("page: %v", err)
		}
	}
	check(true, StateLive, "running")
	if err := log.Close(); err != nil { // as the kernel does for a process that is killed
		t.Fatal(err)
	}
	check(false, StateCutShort, "cut short")
}
