package quarantine

import (
	"context"
	"fmt"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/tools/workspace"
)

// fakeModes are the directories that changes inside the sandbox would affect.
type fakeModes struct {
	modes map[string]uint32
	set   []string // the changes, in order
}

func (f *fakeModes) change(_ context.Context, op workspace.Op) (workspace.Change, error) {
	was, ok := f.modes[op.Path]
	if !ok {
		return workspace.Change{}, fs.ErrPermission
	}
	mode := op.Mode
	if op.Add {
		mode |= was
	}
	f.modes[op.Path] = mode
	if mode != was {
		f.set = append(f.set, fmt.Sprintf("%s %o", op.Path, mode))
	}
	return workspace.Change{Mode: was}, nil
}

// TestDirectoriesAboveAreOpened from the top, as far as a rename needs it, and closed from below.
func TestDirectoriesAboveAreOpened(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	f := &fakeModes{modes: map[string]uint32{".": 0o600, "a": 0o555, "a/b": 0o055}}
	q := New(Options{Change: f.change, Log: zap.New(core)})
	q.openParents(t.Context(), "a/b/.git")()
	want := []string{". 700", "a/b 155", "a/b 755", "a/b 155", "a/b 55", ". 600"}
	if diff := cmp.Diff(want, f.set); diff != "" {
		t.Errorf("modes set (-want +got):\n%s", diff)
	}
	if logs.Len() > 0 {
		t.Errorf("logged %v", logs.All())
	}
	restore := q.openParents(t.Context(), "a/foreign/.git") // not even there
	f.modes = nil
	restore()
	if got := logs.FilterMessage("close directory again").Len(); got != 1 {
		t.Errorf("a directory that stays open is logged %d times", got)
	}
}

// TestFailedModesAreNoModes: an unknown mode is never set again.
func TestFailedModesAreNoModes(t *testing.T) {
	b := newBench(t)
	q := b.recorded()
	if _, err := q.setMode(t.Context(), "none", ownerAll, true); err == nil {
		t.Error("the mode of no directory was changed")
	}
}
