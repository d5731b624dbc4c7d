package quarantine

import (
	"context"
	"fmt"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// fakeModes are the directories that changes inside the sandbox would affect.
type fakeModes struct {
	modes map[string]uint32
	set   []string // the changes, in order
}

func (f *fakeModes) setMode(_ context.Context, dir string, mode uint32, add bool) (uint32, error) {
	was, ok := f.modes[dir]
	if !ok {
		return 0, fs.ErrPermission
	}
	if add {
		mode |= was
	}
	f.modes[dir] = mode
	if mode != was {
		f.set = append(f.set, fmt.Sprintf("%s %o", dir, mode))
	}
	return was, nil
}

// TestDirectoriesAboveAreOpened from the top, as far as a rename needs it, and closed from below.
func TestDirectoriesAboveAreOpened(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	f := &fakeModes{modes: map[string]uint32{".": 0o600, "a": 0o555, "a/b": 0o055}}
	c := &closedDirectories{set: f.setMode, log: zap.New(core)}
	c.openParents(t.Context(), "a/b/.git")()
	want := []string{". 700", "a/b 155", "a/b 755", "a/b 155", "a/b 55", ". 600"}
	if diff := cmp.Diff(want, f.set); diff != "" {
		t.Errorf("modes set (-want +got):\n%s", diff)
	}
	if logs.Len() > 0 {
		t.Errorf("logged %v", logs.All())
	}
	restore := c.openParents(t.Context(), "a/foreign/.git") // not even there
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
