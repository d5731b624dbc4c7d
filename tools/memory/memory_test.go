package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a store, and a dispatcher with the tools.
type fixture struct {
	t        *testing.T
	dir      string
	store    *Store
	d        *dispatch.Dispatcher
	warnings []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{t: t, dir: filepath.Join(t.TempDir(), "memory")}
	b.store = NewStore(b.dir, "/home/me/project")
	var err error
	b.d, err = dispatch.New(dispatch.Options{
		Emit: func(dispatch.Event) error { return nil }, OnPrompt: dispatch.OnPromptAllow, Session: "ses_1", Workspace: "/home/me/project",
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Store:  b.store,
		Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2hunter2", "[redacted]") },
		Warn:   func(w string) { b.warnings = append(b.warnings, w) },
	}
	for _, f := range Factories(o) {
		if err := b.d.Register(f); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *fixture) call(name tools.Name, input string) tools.Result {
	b.t.Helper()
	got, err := b.d.Round(b.t.Context(), []tools.Call{{ID: "tu_1", Name: name, Session: "ses_1", Input: json.RawMessage(input)}})
	if err != nil {
		b.t.Fatal(err)
	}
	return got[0]
}

func resultText(r tools.Result) string { return r.Content[0].Text }

func TestMemoryLastsBeyondItsStore(t *testing.T) {
	b := newFixture(t)
	for _, input := range []string{`{"text":"build with make"}`, `{"content":"tests need root"}`, `{"text":"the key is hunter2hunter2"}`} {
		if r := b.call(AddName, input); r.IsError {
			t.Fatalf("%s: %s", input, resultText(r))
		}
	}
	if r := b.call(ReplaceName, `{"id":"m2","text":"tests need root\nand gVisor"}`); r.IsError || resultText(r) != "Kept. The notes are now (3 of 100):\nm1: build with make\nm2: tests need root\n  and gVisor\nm3: the key is [redacted]\n" {
		t.Errorf("replace: %s", resultText(r))
	}
	if r := b.call(ReplaceName, `{"id":"m3","text":""}`); r.IsError {
		t.Errorf("remove: %s", resultText(r))
	}
	if r := b.call(ConsolidateName, `{"ids":["m1","m2"],"text":"make; tests as root"}`); r.IsError {
		t.Errorf("consolidate: %s", resultText(r))
	}
	// Another session reads what this one left; an id is used once.
	n, err := NewStore(b.dir, "/home/me/project").Read()
	if err != nil || n.String() != "m4: make; tests as root\n" || n.Notes[0].Session != "ses_1" || n.Notes[0].Changed.IsZero() {
		t.Errorf("read %+v, %v", n, err)
	}
	// Another workspace has its own.
	if n, err := NewStore(b.dir, "/home/me/other").Read(); err != nil || len(n.Notes) != 0 {
		t.Errorf("another workspace reads %+v, %v", n, err)
	}
	info, err := os.Stat(filepath.Join(b.store.Dir(), notesFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file %v, %v", info, err)
	}
	if dir, err := os.Stat(b.store.Dir()); err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("directory %v, %v", dir, err)
	}
}

func TestMemoryRefusals(t *testing.T) {
	b := newFixture(t)
	b.call(AddName, `{"text":"one"}`)
	for name, c := range map[string]struct {
		tool  tools.Name
		input string
		class tools.ErrorClass
		want  string
	}{
		"empty":       {AddName, `{"text":""}`, tools.ErrorValidation, "minLength"},
		"only spaces": {AddName, `{"text":"  "}`, tools.ErrorExecution, "no text for a note"},
		"too long":    {AddName, `{"text":"` + strings.Repeat("x", MaxNoteBytes+1) + `"}`, tools.ErrorValidation, "maxLength"},
		"too long in bytes": {
			AddName, `{"text":"` + strings.Repeat("é", MaxNoteBytes) + `"}`, tools.ErrorExecution,
			"no text for a note: 1 to 2000 bytes",
		},
		"no such note":   {ReplaceName, `{"id":"m9","text":"x"}`, tools.ErrorExecution, "no such note: m9"},
		"one of several": {ConsolidateName, `{"ids":["m1","m9"],"text":"x"}`, tools.ErrorExecution, "no such note: m9"},
		"a path":         {AddName, `{"text":"x","path":"/etc/passwd"}`, tools.ErrorValidation, "path"},
		"an id as path":  {ReplaceName, `{"id":"../../x","text":"x"}`, tools.ErrorExecution, "no such note"},
	} {
		r := b.call(c.tool, c.input)
		if !r.IsError || r.Class != c.class || !strings.Contains(resultText(r), c.want) {
			t.Errorf("%s: %s %q, want %s %q", name, r.Class, resultText(r), c.class, c.want)
		}
	}
	if n, err := b.store.Read(); err != nil || n.String() != "m1: one\n" {
		t.Errorf("after refusals: %q, %v", n, err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	b := newFixture(t)
	full := func() (n int) {
		for ; n <= MaxNotes; n++ {
			r := b.call(AddName, fmt.Sprintf(`{"text":"%d %s"}`, n, strings.Repeat("x", 500)))
			if r.IsError {
				if !strings.Contains(resultText(r), "memory is full") || !strings.Contains(resultText(r), "memory_consolidate") {
					t.Errorf("refused with %q", resultText(r))
				}
				return n
			}
		}
		return n
	}
	if n := full(); n < 50 || n > MaxBytes/500 {
		t.Errorf("%d notes of 500 bytes fit", n)
	}
	n, err := b.store.Read()
	if err != nil || n.checkBounds() != nil {
		t.Errorf("the stored notes exceed their bounds: %v, %v", err, n.checkBounds())
	}
	small := newFixture(t)
	for range MaxNotes {
		small.call(AddName, `{"text":"x"}`)
	}
	if r := small.call(AddName, `{"text":"x"}`); !strings.Contains(resultText(r), "101 notes") {
		t.Errorf("one too many: %q", resultText(r))
	}
}

// TestMemoryOfMany checks that concurrent changes are all kept, and that readers
// only see complete files.
func TestMemoryOfMany(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := NewStore(dir, "/w")
			for j := range 5 {
				_, aside, err := s.Change(t.Context(), "", func(n *Notes) error {
					n.add(Note{Text: fmt.Sprintf("%d-%d", i, j), Session: "s", Changed: s.now()})
					return nil
				})
				if err != nil || aside != "" {
					t.Errorf("change: %v, aside %q", err, aside)
				}
				if _, err := s.Read(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n, err := NewStore(dir, "/w").Read()
	if err != nil || len(n.Notes) != 40 || n.Last != 40 {
		t.Errorf("%d notes, last %d, %v", len(n.Notes), n.Last, err)
	}
}

// TestMemoryThatIsCorrupt checks that a corrupt file is moved aside, and neither
// used nor lost.
func TestMemoryThatIsCorrupt(t *testing.T) {
	for name, text := range map[string]string{
		"garbage":             "not json",
		"cut off":             `{"version":1,"workspace":"/home/me/project","notes":[{"id":"m1","te`,
		"another version":     `{"version":9,"workspace":"/home/me/project","last":0,"notes":[]}`,
		"another workspace":   `{"version":1,"workspace":"/etc","last":0,"notes":[]}`,
		"an unknown key":      `{"version":1,"workspace":"/home/me/project","last":0,"notes":[],"trust":"full"}`,
		"over the bounds":     `{"version":1,"workspace":"/home/me/project","last":1,"notes":[{"id":"m1","text":"` + strings.Repeat("x", MaxNoteBytes+1) + `","changed":"2026-01-01T00:00:00Z"}]}`,
		"larger than a store": strings.Repeat(" ", maxFileBytes+1),
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			if err := os.MkdirAll(b.store.Dir(), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(b.store.Dir(), notesFile), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if n, err := b.store.Read(); err == nil {
				t.Errorf("read %+v", n)
			}
			if r := b.call(AddName, `{"text":"new"}`); r.IsError {
				t.Fatalf("add: %s", resultText(r))
			}
			if len(b.warnings) != 1 {
				t.Errorf("warnings: %v", b.warnings)
			}
			aside, err := filepath.Glob(filepath.Join(b.store.Dir(), notesFile+".corrupt-*"))
			if err != nil || len(aside) != 1 {
				t.Fatalf("aside: %v, %v", aside, err)
			}
			if got, err := os.ReadFile(aside[0]); err != nil || string(got) != text {
				t.Errorf("what was moved aside differs: %v", err)
			}
		})
	}
}

// TestMemoryFollowsNoLink checks that a symlink in place of the file is neither
// followed nor written through.
func TestMemoryFollowsNoLink(t *testing.T) {
	b := newFixture(t)
	outside := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(outside, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.store.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(b.store.Dir(), notesFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Read(); err == nil {
		t.Error("a symlink was followed")
	}
	if r := b.call(AddName, `{"text":"new"}`); r.IsError {
		t.Errorf("add: %s", resultText(r))
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "canary" {
		t.Errorf("the symlink's target is %q, %v", got, err)
	}
}

// TestMemoryThatWasShown checks that a call applies the change that was shown,
// or none.
func TestMemoryThatWasShown(t *testing.T) {
	b := newFixture(t)
	b.call(AddName, `{"text":"one"}`)
	factory := Factories(Options{Store: b.store, Redact: func(s string) string { return s }})[1]
	call := &tools.Call{Input: json.RawMessage(`{"id":"m1","text":"two"}`)}
	p, err := factory().(tools.Projector).Project(t.Context(), call)
	if err != nil || !strings.Contains(p.Diff, "-m1: one\n+m1: two\n") {
		t.Fatalf("projected %+v, %v", p, err)
	}
	if n, _ := b.store.Read(); n.String() != "m1: one\n" {
		t.Errorf("Project changed the notes to %q", n)
	}
	b.call(AddName, `{"text":"other"}`)
	call.Projected = p.State
	_, err = factory().Execute(t.Context(), call)
	if own, ok := errors.AsType[*tools.Error](err); !ok || own.Reason != "conflict" {
		t.Errorf("executed: %v", err)
	}
	if n, _ := b.store.Read(); n.String() != "m1: one\nm2: other\n" {
		t.Errorf("it was changed: %q", n)
	}
}

// TestMemoryThatCannotBeShown: a call about which a person was asked without a diff fails
// for its own reason, and notes that can't be read are shown as they will be.
func TestMemoryThatCannotBeShown(t *testing.T) {
	b := newFixture(t)
	factory := Factories(Options{Store: b.store, Redact: func(s string) string { return s }, Warn: func(string) {}})[1]
	call := &tools.Call{Input: json.RawMessage(`{"id":"m1","text":"two"}`)}
	p, err := factory().(tools.Projector).Project(t.Context(), call)
	call.Projected = p.State
	_, failed := factory().Execute(t.Context(), call)
	if own, ok := errors.AsType[*tools.Error](failed); err == nil || !ok || own.Reason != "not_found" {
		t.Errorf("projected %+v, %v; executed: %v", p, err, failed)
	}
	b.call(AddName, `{"text":"one"}`)
	if err := os.WriteFile(filepath.Join(b.store.Dir(), notesFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	factory = Factories(Options{Store: b.store, Redact: func(s string) string { return s }, Warn: func(string) {}})[0]
	call = &tools.Call{Input: json.RawMessage(`{"text":"new"}`)}
	p, err = factory().(tools.Projector).Project(t.Context(), call)
	call.Projected = p.State
	if _, failed = factory().Execute(t.Context(), call); err != nil || failed != nil || !strings.Contains(p.Diff, "+m1: new") {
		t.Errorf("projected %+v, %v; executed: %v", p, err, failed)
	}
}

func TestMemoryIsOffByDefault(t *testing.T) {
	for _, f := range Factories(Options{}) {
		if def := f().Definition(); def.EnabledByDefault || def.Runs != tools.PlaceState || def.Paths != nil {
			t.Errorf("%+v", def)
		}
	}
	d, err := dispatch.New(dispatch.Options{Emit: func(dispatch.Event) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Factories(Options{}) {
		if err := d.Register(f); err != nil {
			t.Fatal(err)
		}
	}
	if defs := d.Definitions(); len(defs) != 0 {
		t.Errorf("offered: %v", defs)
	}
	got, err := d.Round(context.Background(), []tools.Call{{ID: "tu_1", Name: AddName, Input: json.RawMessage(`{"text":"x"}`)}})
	if err != nil || !got[0].IsError {
		t.Errorf("executed: %+v, %v", got, err)
	}
}

// TestMemoryLock checks that waiting for the lock ends with the call's context.
func TestMemoryLock(t *testing.T) {
	s := NewStore(t.TempDir(), "/w")
	lock, err := state.Acquire(t.Context(), filepath.Join(s.Dir(), lockFile), lockTime)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	gone := errors.New("the call is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, _, err := s.Change(ctx, "", func(*Notes) error { return nil }); !errors.Is(err, gone) {
		t.Errorf("change: %v", err)
	}
}
