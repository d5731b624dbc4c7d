package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
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

var oldFiles = map[string]string{"a": "old\n", "b": "old\n", "gone": "old\n"}

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

// dieAt makes the first sandbox die at a change: before it, or after it with the answer lost.
func (b *bench) dieAt(step int, after bool) {
	calls := 0
	b.backend.OnApply = func(box *fakesandbox.Sandbox, _ workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error) {
		calls++
		if box.Number > 0 || calls != step {
			return do()
		}
		if after {
			if _, err := do(); err != nil {
				b.t.Error(err)
			}
		}
		box.End(sandbox.ErrLost)
		return workspace.Change{}, fmt.Errorf("apply: %w", sandbox.ErrLost)
	}
}

func warnings(t *testing.T, records []record.Record) string {
	t.Helper()
	var all []string
	for _, w := range of[record.Warning](t, records) {
		all = append(all, w.Message)
	}
	return strings.Join(all, "\n")
}

// again is another session on the workspace, in a later process.
func (b *bench) again() *bench {
	b.t.Helper()
	if err := b.opts.Dir.Close(); err != nil {
		b.t.Fatal(err)
	}
	next := *b
	folder, err := sessiondir.Create(filepath.Join(filepath.Dir(b.dir), "state"), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { folder.Close() })
	next.backend = &fakesandbox.Backend{Scripts: map[string]fakesandbox.Script{}}
	next.opts.Dir, next.opts.Backend = folder, next.backend
	next.opts.Profiles = []loop.Profile{{Model: player(b.t, "  - calls: [{tool: read_file, input: {path: a}}]\n  - text: done\n")}}
	return &next
}

// cutOffNotes returns the warnings about patches, in order.
func cutOffNotes(t *testing.T, records []record.Record) []string {
	t.Helper()
	var notes []string
	for _, w := range of[record.Warning](t, records) {
		if strings.Contains(w.Message, "apply_patch") {
			notes = append(notes, w.Message)
		}
	}
	return notes
}

// TestPatchWhoseSandboxIsLost kills the sandbox at each moment of a patch: the session reports it and
// changes nothing more. The control is a complete patch.
func TestPatchWhoseSandboxIsLost(t *testing.T) {
	for step := range patchSteps + 1 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d after %v", step, after), func(t *testing.T) {
				b := patchBench(t)
				b.dieAt(step, after)
				r, records := b.run(t.Context())
				want, status := []string{"apply_patch was cut off while changing a, b, gone, n: check them with git diff"}, OutcomeSandboxLost
				if step == 0 {
					want, status = nil, 0
				}
				if d := cmp.Diff(want, cutOffNotes(t, records)); d != "" || r.ExitStatus != status {
					t.Errorf("exit status %d, notes (-want +got):\n%s", r.ExitStatus, d)
				}
				if _, ok := sessiondir.ReadPatchMark(r.Dir); ok {
					t.Error("the mark is left")
				}
				if _, records := b.again().run(t.Context()); len(cutOffNotes(t, records)) > 0 {
					t.Errorf("reported again: %q", cutOffNotes(t, records))
				}
			})
		}
	}
}

// leaveMark leaves a patch's mark in the directory of another, dead session.
func (b *bench) leaveMark(mark sessiondir.PatchMark) (session, dir string) {
	b.t.Helper()
	session = "ses_00000000000000000000000000"
	state := filepath.Join(filepath.Dir(b.dir), "state")
	dir = sessiondir.Path(state, session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	for _, name := range []string{sessiondir.LogFile, record.TraceFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}\n"), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	m := &patchMarker{dir: dir, workspace: mark.Workspace, mode: mark.Mode}
	if _, err := m.markPatch(mark.Paths); err != nil {
		b.t.Fatal(err)
	}
	if _, err := sessiondir.Sweep(state); err != nil { // a start finds only what Create made
		b.t.Fatal(err)
	}
	return session, dir
}

// TestPatchOfADeadSession: the next session on the workspace, in either mode, reports the patch once,
// without a sandbox.
func TestPatchOfADeadSession(t *testing.T) {
	for name, overlaid := range map[string]bool{"bind": false, "overlay": true} {
		t.Run(name, func(t *testing.T) {
			b := patchBench(t)
			session, dir := b.leaveMark(sessiondir.PatchMark{Workspace: b.opts.Workspace.Path, Mode: "bind", Paths: []string{"x", "y"}})
			next := b.again()
			if overlaid {
				next.overlaid()
			}
			usePolicy(t, next, "readonly")
			_, records := next.run(t.Context())
			want := []string{"apply_patch of session " + session + " was cut off while changing x, y: check them with git diff"}
			if d := cmp.Diff(want, cutOffNotes(t, records)); d != "" || len(of[record.SandboxStarted](t, records)) > 0 {
				t.Errorf("notes (-want +got):\n%s", d)
			}
			if _, ok := sessiondir.ReadPatchMark(dir); ok {
				t.Error("the mark is left")
			}
			if d := cmp.Diff(oldFiles, b.files()); d != "" {
				t.Errorf("files (-want +got):\n%s", d)
			}
			if _, records := next.again().run(t.Context()); len(cutOffNotes(t, records)) > 0 {
				t.Errorf("reported again: %q", cutOffNotes(t, records))
			}
		})
	}
}

// TestPatchOfAnother: patches of live sessions, of other workspaces and in overlays are not reported
// here, and their marks stay.
func TestPatchOfAnother(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, mark *sessiondir.PatchMark){
		"it lives":          func(*testing.T, *sessiondir.PatchMark) {},
		"another workspace": func(t *testing.T, mark *sessiondir.PatchMark) { mark.Workspace = t.TempDir() },
		"an overlay":        func(_ *testing.T, mark *sessiondir.PatchMark) { mark.Mode = "overlay" },
	} {
		t.Run(name, func(t *testing.T) {
			b := patchBench(t)
			mark := sessiondir.PatchMark{Workspace: b.opts.Workspace.Path, Mode: "bind", Paths: []string{"x"}}
			change(t, &mark)
			session, dir := b.leaveMark(mark)
			state := filepath.Join(filepath.Dir(b.dir), "state")
			if note := sessiondir.CutOffPatch(state, session); note != "apply_patch was cut off while changing x: check them with the diff" {
				t.Errorf("control: the note of a dead session is %q", note)
			}
			if name == "it lives" {
				log, err := os.Open(filepath.Join(dir, sessiondir.LogFile))
				if err != nil {
					t.Fatal(err)
				}
				defer log.Close()
				if err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
					t.Fatal(err)
				}
				if note := sessiondir.CutOffPatch(state, session); note != "" {
					t.Errorf("the note of a living session is %q", note)
				}
			}
			_, records := b.again().run(t.Context())
			if _, ok := sessiondir.ReadPatchMark(dir); !ok || len(cutOffNotes(t, records)) > 0 {
				t.Errorf("mark %v, notes %q", ok, cutOffNotes(t, records))
			}
		})
	}
}

// TestPatchInAnOverlay: its own session reports an interrupted patch, and so do views of the kept
// changes.
func TestPatchInAnOverlay(t *testing.T) {
	b := patchBench(t).overlaid()
	b.dieAt(2, true)
	r, records := b.run(t.Context())
	want := []string{"apply_patch was cut off while changing a, b, gone, n: check them with the session's diff"}
	if d := cmp.Diff(want, cutOffNotes(t, records)); d != "" {
		t.Errorf("notes (-want +got):\n%s", d)
	}
	if err := b.opts.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	if note := sessiondir.CutOffPatch(filepath.Join(filepath.Dir(b.dir), "state"), r.Session); !strings.Contains(note, "changing a, b, gone, n") {
		t.Errorf("the note of its changes is %q", note)
	}
}

// TestPatchMarks: concurrent patches share a mark, which goes with the last one. A mark that can't be
// written is an error.
func TestPatchMarks(t *testing.T) {
	m := &patchMarker{dir: t.TempDir(), workspace: "/w", mode: "bind"}
	begin := func(paths ...string) (unmark func()) {
		t.Helper()
		unmark, err := m.markPatch(paths)
		if err != nil {
			t.Fatal(err)
		}
		return unmark
	}
	wantPaths := func(want ...string) {
		t.Helper()
		if mark, _ := sessiondir.ReadPatchMark(m.dir); !slices.Equal(mark.Paths, want) {
			t.Errorf("the mark has %q, want %q", mark.Paths, want)
		}
	}
	first := begin("b", "a")
	wantPaths("a", "b")
	second := begin("c", "a")
	wantPaths("a", "b", "c")
	first()
	wantPaths("a", "c")
	second()
	wantPaths()
	if left, err := os.ReadDir(m.dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	m.dir = filepath.Join(m.dir, "missing")
	if _, err := m.markPatch([]string{"a"}); err == nil {
		t.Error("no error in a directory that is missing")
	}
	if note := sessiondir.CutOffNote("x", strings.Fields(strings.Repeat("p ", 22)), "y"); !strings.HasSuffix(note, "p, p and 2 more: check them with y") {
		t.Error(note)
	}
}
