//go:build linux

package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// kept is a journal in memory, whose patches went through JSON as one on disk.
type kept struct {
	pending []Pending
	begun   int
}

func (k *kept) Begin(p Pending) (func(), error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	var again Pending
	if err := json.Unmarshal(raw, &again); err != nil {
		return nil, err
	}
	k.begun++
	k.pending = append(k.pending, again)
	return func() { k.pending = nil }, nil
}

// moment is when, in a change, a sandbox dies.
type moment int

const (
	beforeIt moment = iota
	inIt            // with its temporary file written
	afterIt         // with its answer lost
	moments
)

// mortal is a sandbox that dies at one of its changes and makes none after it.
type mortal struct {
	*sandbox
	root  string
	at    int
	when  moment
	calls int
}

func (m *mortal) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	m.calls++
	gone := fmt.Errorf("%w: killed", tools.ErrSandboxLost)
	switch {
	case m.calls > m.at, m.calls == m.at && m.when == beforeIt:
		return workspace.Change{}, gone
	case m.calls < m.at:
		return m.sandbox.Apply(ctx, op)
	}
	if m.when == inIt && op.Kind == workspace.OpWrite {
		temp := filepath.Join(m.root, path.Dir(op.Path), workspace.TempName(op.Temp))
		err := errors.Join(os.MkdirAll(filepath.Dir(temp), 0o755), os.WriteFile(temp, op.Content[:len(op.Content)/2], 0o600))
		return workspace.Change{}, errors.Join(gone, err)
	}
	if m.when == afterIt {
		_, _ = m.sandbox.Apply(ctx, op)
	}
	return workspace.Change{}, gone
}

// TestPatchThatIsCutOff kills the sandbox at each moment of a patch of every
// kind of change, and then at each moment of its recovery too. In between each
// file is old or new; in the end all are old or all are new, modes included,
// and nothing else is left. The control: without the recovery some are old and
// some new.
func TestPatchThatIsCutOff(t *testing.T) {
	mixed, outcomes := 0, map[Outcome]int{}
	for at := 1; at <= faultSteps; at++ {
		for when := range moments {
			for again := range 7 { // 0 is a recovery that isn't killed
				if again > 0 && when != afterIt {
					continue
				}
				s := mortal{at: at, when: when}
				r := mortal{at: again, when: moment(at+again) % moments}
				t.Run(fmt.Sprintf("%d-%d, %d-%d", s.at, s.when, r.at, r.when), func(t *testing.T) {
					outcome, part := cutOff(t, s, r)
					outcomes[outcome]++
					if part {
						mixed++
					}
				})
			}
		}
	}
	if mixed == 0 || outcomes[Undone] == 0 || outcomes[Completed] == 0 || outcomes[Left] > 0 {
		t.Errorf("control: %d were part done; %v", mixed, outcomes)
	}
}

// cutOff makes a patch in a sandbox that dies, recovers it in another that may
// die, and at last in one that doesn't. It says how that ended and whether the
// patch was part done before.
func cutOff(t *testing.T, s, r mortal) (_ Outcome, part bool) {
	f := newFixture(t)
	raw := faultPatch(f)
	before, modes := f.files(), f.modes()
	after, newModes := f.patched(raw)
	k := &kept{}
	s.sandbox, s.root, r.sandbox, r.root = f.sandbox, f.root, f.sandbox, f.root
	_, err := (&patchApplier{reader: f.reader, apply: &s, journal: k}).Execute(t.Context(), &tools.Call{Input: raw})
	if !errors.Is(err, tools.ErrSandboxLost) || len(k.pending) != 1 {
		t.Fatalf("the patch was not cut off: %v, %d pending", err, len(k.pending))
	}
	part = f.each(before, after)
	if r.at > 0 {
		_, _ = Recover(t.Context(), f.reader, &r, k.pending[0])
		f.each(before, after)
	}
	got, err := Recover(t.Context(), f.reader, f.sandbox, k.pending[0])
	if err != nil {
		t.Fatal(err)
	}
	if got.Outcome == Completed {
		before, modes = after, newModes
	}
	if d := cmp.Diff(before, f.files()); d != "" {
		t.Errorf("%s, but files differ (-want +got):\n%s", got.Outcome, d)
	}
	if d := cmp.Diff(modes, f.modes()); d != "" {
		t.Errorf("%s, but modes differ (-want +got):\n%s", got.Outcome, d)
	}
	return got.Outcome, part
}

// patched gives files and modes after a patch, which is done in a copy.
func (f *fixture) patched(raw json.RawMessage) (files, modes map[string]string) {
	f.t.Helper()
	other := newFixture(f.t)
	faultPatch(other)
	_, err := (&patchApplier{reader: other.reader, apply: other.sandbox}).Execute(f.t.Context(), &tools.Call{Input: raw})
	f.must(err)
	return other.files(), other.modes()
}

// each fails the test where a file is neither old nor new, and says whether some
// are the one and some the other.
func (f *fixture) each(before, after map[string]string) bool {
	f.t.Helper()
	now := f.files()
	for name := range now {
		if strings.HasSuffix(name, ".tmp") {
			delete(now, name)
		}
	}
	for name, content := range now {
		// k is moved from m and then changed.
		if content != before[name] && content != after[name] && (name != "k" || content != before["m"]) {
			f.t.Errorf("%s is neither old nor new: %q", name, content)
		}
	}
	return !maps.Equal(now, before) && !maps.Equal(now, after)
}

// TestRecoverTouchesNothingOfOthers: where somebody went on working on a file,
// nothing is changed, and each file is spoken of.
func TestRecoverTouchesNothingOfOthers(t *testing.T) {
	f := newFixture(t)
	raw := faultPatch(f)
	k := &kept{}
	s := &mortal{sandbox: f.sandbox, root: f.root, at: 3}
	if _, err := (&patchApplier{reader: f.reader, apply: s, journal: k}).Execute(t.Context(), &tools.Call{Input: raw}); err == nil {
		t.Fatal("no error")
	}
	f.file("gone", "somebody's\n")
	was := f.files()
	got, err := Recover(t.Context(), f.reader, f.sandbox, k.pending[0])
	if err != nil || got.Outcome != Left || len(got.Changed) > 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if d := cmp.Diff(was, f.files()); d != "" {
		t.Errorf("files (-were +are):\n%s", d)
	}
	notes := strings.Join(got.Notes, "\n")
	for _, want := range []string{"a is as the patch makes it", "gone is neither", "gone2 is as it was before"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes)
		}
	}
}

// TestJournalOfPatches: one change alone needs none, a patch that is done or
// undone is forgotten, and one that can't be kept is not begun.
func TestJournalOfPatches(t *testing.T) {
	f := newFixture(t)
	f.file("a", "x\n")
	run := func(k journal, s applier, patch string) error {
		raw, err := json.Marshal(object{"patch": patch})
		f.must(err)
		_, err = (&patchApplier{reader: f.reader, apply: s, journal: k}).Execute(t.Context(), &tools.Call{Input: raw})
		return err
	}
	two := patchOf("*** Update File: a", "@@", "-x", "+y", "*** Add File: n", "+1")
	k := &kept{}
	f.must(run(k, f.sandbox, patchOf("*** Add File: one", "+1")))
	if k.begun != 0 {
		t.Error("one change alone is in the journal")
	}
	s := &faulty{sandbox: f.sandbox, at: 2, err: &workspace.Error{Kind: workspace.KindNoSpace, Path: "n"}}
	if err := run(k, s, two); err == nil || k.begun != 1 || len(k.pending) > 0 {
		t.Errorf("a patch that was undone: %v, begun %d, %d kept", err, k.begun, len(k.pending))
	}
	before := f.files()
	if err := run(full{}, f.sandbox, two); err == nil || !errors.Is(err, errFull) {
		t.Errorf("a patch that can't be kept: %v", err)
	}
	if d := cmp.Diff(before, f.files()); d != "" {
		t.Errorf("it was begun (-before +now):\n%s", d)
	}
	f.must(run(k, f.sandbox, two))
	if k.begun != 2 || len(k.pending) > 0 {
		t.Errorf("a patch that was done: begun %d, %d kept", k.begun, len(k.pending))
	}
}

var errFull = errors.New("no space")

// full is a journal that can't keep anything.
type full struct{}

func (full) Begin(Pending) (func(), error) { return nil, errFull }

// TestRecoverUndoesWhatCantBeCompleted: where a delete is refused that alone was
// missing, the rest is undone.
func TestRecoverUndoesWhatCantBeCompleted(t *testing.T) {
	f := newFixture(t)
	raw := faultPatch(f)
	before := f.files()
	k := &kept{}
	s := &mortal{sandbox: f.sandbox, root: f.root, at: faultSteps}
	if _, err := (&patchApplier{reader: f.reader, apply: s, journal: k}).Execute(t.Context(), &tools.Call{Input: raw}); err == nil {
		t.Fatal("no error")
	}
	got, err := Recover(t.Context(), f.reader, &undeletable{f.sandbox, "gone2"}, k.pending[0])
	if err != nil || got.Outcome != Undone {
		t.Fatalf("%+v, %v", got, err)
	}
	if d := cmp.Diff(before, f.files()); d != "" {
		t.Errorf("files differ (-before +now):\n%s", d)
	}
}

// undeletable refuses to delete one file.
type undeletable struct {
	*sandbox
	name string
}

func (u *undeletable) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if op.Kind == workspace.OpDelete && op.Path == u.name {
		return workspace.Change{}, &workspace.Error{Kind: workspace.KindPermission, Path: op.Path}
	}
	return u.sandbox.Apply(ctx, op)
}
