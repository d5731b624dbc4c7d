//go:build linux

package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// patchTurns play a patch of four changes: two writes, a new file, a delete.
const patchTurns = `  - calls: [{tool: apply_patch, input: {patch: "*** Begin Patch\n*** Update File: a\n@@\n-old\n+new\n*** Update File: b\n@@\n-old\n+new\n*** Add File: n\n+new\n*** Delete File: gone\n*** End Patch"}}]
  - text: done
`

const patchSteps = 4

// patchBench has what the patch changes.
func patchBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, patchTurns)
	for _, name := range []string{"a", "b", "gone"} {
		b.file(name, "old\n")
	}
	return b
}

var (
	oldFiles = map[string]string{"a": "old\n", "b": "old\n", "gone": "old\n"}
	newFiles = map[string]string{"a": "new\n", "b": "new\n", "n": "new\n"}
)

func (b *bench) files() map[string]string {
	b.t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(b.dir, e.Name()))
		if err != nil {
			b.t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

// dieAt makes the first sandbox die at a change: before it, or after it with its
// answer lost.
func (b *bench) dieAt(step int, after bool) {
	calls := 0
	b.backend.applying = func(box *fakeBox, _ workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		calls++
		if box.number > 0 || calls != step {
			return do()
		}
		if after {
			if _, err := do(); err != nil {
				b.t.Error(err)
			}
		}
		box.die(sandbox.ErrLost)
		return workspace.Change{}, fmt.Errorf("apply: %w", sandbox.ErrLost)
	}
}

func warnings(t *testing.T, records []Record) string {
	t.Helper()
	var all []string
	for _, w := range of[Warning](t, records) {
		all = append(all, w.Message)
	}
	return strings.Join(all, "\n")
}

// again is another session on the same workspace, after the first one's process.
func (b *bench) again() *bench {
	b.t.Helper()
	if err := b.opts.Folder.Close(); err != nil {
		b.t.Fatal(err)
	}
	next := *b
	folder, err := NewFolder(filepath.Join(filepath.Dir(b.dir), "state"), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { folder.Close() })
	next.backend = &fakeBackend{scripts: map[string]script{}}
	next.opts.Folder, next.opts.Backend = folder, next.backend
	next.opts.Model = player(b.t, "  - calls: [{tool: read_file, input: {path: a}}]\n  - text: done\n")
	return &next
}

// TestPatchWhoseSandboxIsLost kills the sandbox at each moment of a patch: at the
// session's end all files are old or all are new, and the records say which. Where
// no other sandbox can be had, the session says so, keeps the patch, and the next
// one ends it before its model reads anything. That is the control too: until
// then some files are old and some new.
func TestPatchWhoseSandboxIsLost(t *testing.T) {
	mixed := 0
	for step := 1; step <= patchSteps; step++ {
		for _, after := range []bool{false, true} {
			want, outcome := oldFiles, "It was undone"
			switch {
			case step == 1 && !after:
				outcome = "" // nothing had been done
			case step == patchSteps && after:
				want, outcome = newFiles, ""
			case step == patchSteps, step == patchSteps-1 && after: // only the delete is missing
				want, outcome = newFiles, "It was completed"
			}
			t.Run(fmt.Sprintf("%d after %v", step, after), func(t *testing.T) {
				b := patchBench(t)
				b.dieAt(step, after)
				r, records := b.run(t.Context())
				if r.ExitStatus != ExitSandboxLost {
					t.Errorf("exit status %d", r.ExitStatus)
				}
				if d := cmp.Diff(want, b.files()); d != "" {
					t.Errorf("files (-want +got):\n%s", d)
				}
				said := warnings(t, records)
				if !strings.Contains(said, outcome) || outcome == "" && strings.Contains(said, "patch") {
					t.Errorf("warnings:\n%s", said)
				}
				if _, err := os.Lstat(filepath.Join(r.Dir, patchesDir)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the folder of patches is left: %v", err)
				}
			})
			t.Run(fmt.Sprintf("%d after %v, for good", step, after), func(t *testing.T) {
				b := patchBench(t)
				b.dieAt(step, after)
				b.backend.create = func(_ context.Context, number int) error {
					if number > 0 {
						return errors.New("the engine is gone")
					}
					return nil
				}
				r, records := b.run(t.Context())
				if said := warnings(t, records); !strings.Contains(said, "The next session on this workspace ends it") {
					t.Errorf("warnings:\n%s", said)
				}
				if len(pendingPatches(r.Dir)) != 1 {
					t.Fatalf("kept: %v", pendingPatches(r.Dir))
				}
				if f := b.files(); cmp.Diff(oldFiles, f) != "" && cmp.Diff(newFiles, f) != "" {
					mixed++
				}
				next := b.again()
				_, records = next.run(t.Context())
				if d := cmp.Diff(want, b.files()); d != "" {
					t.Errorf("files after the next session (-want +got):\n%s", d)
				}
				if said := warnings(t, records); !strings.Contains(said, outcome) {
					t.Errorf("warnings of the next session:\n%s", said)
				}
				if read := resultsText(t, records); !strings.Contains(read, strings.TrimSpace(want["a"])) {
					t.Errorf("its model read:\n%s", read)
				}
				if left := pendingPatches(r.Dir); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
	if mixed < 4 {
		t.Errorf("control: %d patches were part done", mixed)
	}
}

// resultsText is what the model was answered.
func resultsText(t *testing.T, records []Record) string {
	t.Helper()
	var b strings.Builder
	for _, m := range of[Message](t, records) {
		for _, block := range m.Blocks {
			if block.ToolResult != nil {
				for _, c := range block.ToolResult.Content {
					b.WriteString(c.Text)
				}
			}
		}
	}
	return b.String()
}

// TestPatchIsLeftToItsOwner: a patch of a session that lives, of another
// workspace, or whose files somebody worked on since, is not touched.
func TestPatchIsLeftToItsOwner(t *testing.T) {
	cutOff := func(t *testing.T) (*bench, string) {
		b := patchBench(t)
		b.dieAt(3, false)
		b.backend.create = func(_ context.Context, number int) error {
			if number > 0 {
				return errors.New("the engine is gone")
			}
			return nil
		}
		r, _ := b.run(t.Context())
		return b, r.Dir
	}
	part := map[string]string{"a": "new\n", "b": "new\n", "gone": "old\n"}

	t.Run("it lives", func(t *testing.T) {
		b, dir := cutOff(t)
		next := b.again()
		log, err := os.Open(filepath.Join(dir, LogFile))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if err := hold(log); err != nil {
			t.Fatal(err)
		}
		next.run(t.Context())
		if d := cmp.Diff(part, b.files()); d != "" {
			t.Errorf("files (-want +got):\n%s", d)
		}
	})
	t.Run("another workspace", func(t *testing.T) {
		b, dir := cutOff(t)
		next := b.again()
		other := filepath.Join(t.TempDir(), "other")
		if err := os.Mkdir(other, 0o755); err != nil {
			t.Fatal(err)
		}
		w, err := OpenWorkspace(other, Protected{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		next.opts.Workspace = w
		next.run(t.Context())
		if d := cmp.Diff(part, b.files()); d != "" || len(pendingPatches(dir)) != 1 {
			t.Errorf("%v; files (-want +got):\n%s", pendingPatches(dir), d)
		}
	})
	t.Run("somebody went on", func(t *testing.T) {
		b, dir := cutOff(t)
		b.file("b", "somebody's\n")
		_, records := b.again().run(t.Context())
		if d := cmp.Diff(map[string]string{"a": "new\n", "b": "somebody's\n", "gone": "old\n"}, b.files()); d != "" {
			t.Errorf("files (-want +got):\n%s", d)
		}
		said := warnings(t, records)
		aside, err := filepath.Glob(filepath.Join(dir, patchesDir, "*"+leftSuffix))
		if err != nil || len(aside) != 1 || len(pendingPatches(dir)) > 0 {
			t.Fatalf("aside %v, %v", aside, err)
		}
		for _, want := range []string{"left part done", "a is as the patch makes it", "b is neither", "n is as it was", aside[0]} {
			if !strings.Contains(said, want) {
				t.Errorf("the warnings lack %q:\n%s", want, said)
			}
		}
		if kept, err := readPatch(aside[0]); err != nil || string(kept.Patch.Files[0].Before) != "old\n" {
			t.Errorf("what it held is not there: %+v, %v", kept, err)
		}
	})
}

// TestPatchInAnOverlay: one that is cut off is undone in the layers, by a fresh
// sandbox on them. A session of an overlay leaves what others left in the folder.
func TestPatchInAnOverlay(t *testing.T) {
	b := patchBench(t).overlaid()
	b.dieAt(2, true)
	r, records := b.run(t.Context())
	if said := warnings(t, records); !strings.Contains(said, "It was undone") {
		t.Errorf("warnings:\n%s", said)
	}
	if len(r.Changed) > 0 || r.Overlay == nil || cmp.Diff(oldFiles, b.files()) != "" {
		t.Errorf("changed: %+v, %+v; files %v", r.Changed, r.Overlay, b.files())
	}

	b = patchBench(t)
	b.dieAt(3, false)
	b.backend.create = func(_ context.Context, number int) error {
		if number > 0 {
			return errors.New("the engine is gone")
		}
		return nil
	}
	r, _ = b.run(t.Context())
	part := b.files()
	_, records = b.again().overlaid().run(t.Context())
	if said := warnings(t, records); !strings.Contains(said, "The next session in bind mode ends it") {
		t.Errorf("warnings:\n%s", said)
	}
	if diff := cmp.Diff(part, b.files()); diff != "" || len(pendingPatches(r.Dir)) != 1 {
		t.Errorf("%v; files (-before +after):\n%s", pendingPatches(r.Dir), diff)
	}
}
