package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// longSession writes a session of many rounds, some with calls that overlap.
func longSession(t *testing.T, rounds int) Session {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	w := newWriter(t, t.TempDir())
	w.created("a long task")
	w.turn = "trn_01JD0000000000000000000000"
	w.put(0, record.ActorUser, record.TurnStarted{})
	for round := range rounds {
		var calls []loop.ToolUse
		for i := range random.IntN(4) {
			calls = append(calls, newToolUse(fmt.Sprintf("tu_%d_%d", round, i), "shell", `{"command":"true"}`))
		}
		w.model(round+1, time.Millisecond, "next", calls...)
		for _, c := range calls {
			w.called(c.ID, "shell", tools.ClassExecute, "true")
		}
		for _, c := range calls {
			w.done(c.ID, "shell", time.Millisecond, record.ToolCompleted{Success: true, FilesModified: []string{}})
		}
		for _, c := range calls {
			w.result(c.ID, "ok", false)
		}
	}
	return w.close()
}

func openTrace(t *testing.T, s Session) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.Dir, record.TraceFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// brief has the compared fields of a step.
type brief struct {
	Kind StepKind
	Seq  int64
	Call string
}

func stepsFrom(f io.ReaderAt, c Checkpoint) (list []brief) {
	steps := NewSteps(func(s Step) {
		b := brief{Kind: s.Kind, Seq: s.Seq}
		if s.Call != nil {
			b.Call = s.Call.ID + s.Call.Summary
		}
		list = append(list, b)
	})
	steps.seq = c.Seq - 1
	in := record.ResumeReader(io.NewSectionReader(f, c.Offset, 1<<40), record.Position{Offset: c.Offset, Seq: c.Seq - 1, Hash: c.Prev})
	for {
		rec, err := in.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				list = append(list, brief{Call: err.Error()})
			}
			break
		}
		steps.Record(rec)
	}
	steps.Close()
	return list
}

// splitsStep reports whether the steps from a checkpoint are not the end of
// all.
func splitsStep(f io.ReaderAt, all []brief, c Checkpoint) bool {
	part := stepsFrom(f, c)
	return len(part) == 0 || len(part) > len(all) || cmp.Diff(all[len(all)-len(part):], part) != ""
}

// TestIndex reads a session from each checkpoint. The records after it verify,
// and are what a reader of the whole sees.
func TestIndex(t *testing.T) {
	s := longSession(t, 600)
	f := openTrace(t, s)
	start := Checkpoint{Seq: 1, Prev: record.StartPosition().Hash}
	all := stepsFrom(f, start)
	x, err := NewIndex(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Extend(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if len(x.points) < 5 || len(x.points) > len(all)/checkpointSteps {
		t.Fatalf("%d checkpoints for %d steps", len(x.points), len(all))
	}
	for i, c := range x.points {
		if splitsStep(f, all, c) {
			t.Errorf("checkpoint %d at %+v splits a step", i, c)
		}
		if c.Turn != 1 {
			t.Errorf("checkpoint %d is in turn %d", i, c.Turn)
		}
		for seq, want := range map[int64]int{c.Seq: i, c.Seq - 1: i - 1, c.Seq + 1: i} {
			got, ok := x.Before(seq)
			if ok != (want >= 0) || ok && got != x.points[want] {
				t.Errorf("before %d is %+v, %v, want checkpoint %d", seq, got, ok, want)
			}
		}
	}
	// Control: checkpoints anywhere split calls.
	naive := 0
	in := record.NewReader(io.NewSectionReader(f, 0, 1<<40))
	for n := 0; ; n++ {
		at := in.Position()
		if n%151 == 0 && n > 0 && splitsStep(f, all, Checkpoint{Offset: at.Offset, Seq: at.Seq + 1, Prev: at.Hash}) {
			naive++
		}
		if _, err := in.Next(); err != nil {
			break
		}
	}
	if naive == 0 {
		t.Error("no checkpoint of a fixed number of records splits a call")
	}
}

// TestIndexGrows extends an index while its file is written, a part of a line
// at a time. It becomes the index of the whole.
func TestIndexGrows(t *testing.T) {
	s := longSession(t, 300)
	whole := openTrace(t, s)
	text, err := io.ReadAll(whole)
	if err != nil {
		t.Fatal(err)
	}
	want, err := NewIndex(whole)
	if err != nil {
		t.Fatal(err)
	}
	if err := want.Extend(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	grows, err := os.Create(filepath.Join(t.TempDir(), "trace"))
	if err != nil {
		t.Fatal(err)
	}
	defer grows.Close()
	x, err := NewIndex(grows)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for len(text) > 0 {
		n := min(len(text), 1+random.IntN(20_000))
		if _, err := grows.Write(text[:n]); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
		if err := x.Extend(t.Context(), grows); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.points, x.points); diff != "" || len(x.points) == 0 {
		t.Errorf("grown, it has other checkpoints (-want +got):\n%s", diff)
	}
	if !x.Of(grows) || x.Of(whole) {
		t.Error("the index does not know its file")
	}
}

// No checkpoint lies after a changed line.
func TestIndexEndsAtDamage(t *testing.T) {
	s := longSession(t, 300)
	f := openTrace(t, s)
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	at := len(lines) / 2
	offset := int64(len(bytes.Join(lines[:at], nil)))
	var rec record.Record
	if err := json.Unmarshal(lines[at], &rec); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Replace(lines[at], []byte(`"ts":"2026`), []byte(`"ts":"2025`), 1), offset); err != nil {
		t.Fatal(err)
	}
	x, err := NewIndex(f)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := x.Extend(t.Context(), f); !errors.Is(err, record.ErrChain) {
			t.Errorf("over a changed line: %v", err)
		}
	}
	last, ok := x.Before(1 << 40)
	if !ok || last.Seq > rec.Seq+1 {
		t.Errorf("the last checkpoint is %+v, %v; the changed record is %d", last, ok, rec.Seq)
	}
}
