package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// overlaid puts the session in overlay mode; its sandbox mounts a real overlay.
func (b *bench) overlaid() *bench {
	b.t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("REQUIRE_BACKENDS") != "" {
			b.t.Fatal("mounting an overlay needs root, and REQUIRE_BACKENDS is set")
		}
		b.t.Skip("mounting an overlay needs root")
	}
	b.opts.Mode = sandbox.ModeOverlay
	return b
}

// bash runs a script in the workspace as commands see it.
func bash(t *testing.T, text string) fakesandbox.Script {
	return func(_ context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		c := exec.Command("bash", "-ec", text)
		c.Dir, c.Stdout, c.Stderr = box.Dir.Name(), cmd.Stdout, cmd.Stdout
		if err := c.Run(); err != nil {
			t.Errorf("%s: %v", text, err)
			return sandbox.ExitStatus{Code: 1}
		}
		return sandbox.ExitStatus{}
	}
}

const overlayTurns = `
  - calls:
      - {tool: read_file, input: {path: greet.sh}}
  - calls:
      - {tool: shell, input: {command: work}}
  - calls:
      - {tool: patch_file, input: {path: greet.sh, old: Helo, new: Hello}}
      - {tool: write_file, input: {path: Makefile, content: "all:\n"}}
  - calls:
      - {tool: read_file, input: {path: made.txt}}
      - {tool: grep, input: {pattern: Hello}}
      - {tool: list_dir, input: {path: .}}
  - text: done
`

// newOverlayBench is a session that changes a few files.
func newOverlayBench(t *testing.T) *bench {
	b := newBench(t, overlayTurns).overlaid()
	b.file("greet.sh", "echo Helo\n")
	b.file("old.txt", "old\n")
	b.backend.Scripts["work"] = bash(t, `echo made > made.txt; rm old.txt; chmod +x greet.sh; mkdir sub; (cd sub; git init -q .)`)
	return b
}

// told returns all that the model was told, according to the records.
func told(records []record.Record) string {
	var b strings.Builder
	for _, r := range records {
		if r.Kind == record.KindMessage {
			b.Write(r.Payload)
		}
	}
	return b.String()
}

func (b *bench) read(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "<none>"
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func TestOverlaySessionLeavesTheFolderAlone(t *testing.T) {
	b := newOverlayBench(t)
	r, records := b.run(t.Context())
	if b.read("greet.sh") != "echo Helo\n" || b.read("old.txt") != "old\n" || b.read("made.txt") != "<none>" || b.read("sub/.git/HEAD") != "<none>" {
		t.Error("the folder changed")
	}
	for _, want := range []record.Changed{
		{Path: "Makefile", Change: "added", Insertions: 1, HasDiff: true},
		{Path: "greet.sh", Change: "modified", Insertions: 1, Deletions: 1, HasDiff: true},
		{Path: "made.txt", Change: "added", Insertions: 1, HasDiff: true},
		{Path: "old.txt", Change: "deleted", Deletions: 1, HasDiff: true},
	} {
		if !slices.Contains(r.Changed, want) {
			t.Errorf("changed files lack %+v: %+v", want, r.Changed)
		}
	}
	if !slices.Contains(r.HostExecuted, record.HostExecuted{Path: "Makefile", By: "make", Added: true}) || len(r.Quarantined) != 0 || len(r.HostExecuted) != 1 {
		t.Errorf("host-executed %+v, quarantined %+v", r.HostExecuted, r.Quarantined)
	}
	if r.Overlay == nil || r.Overlay.State != overlay.Kept || len(r.Overlay.Conflicts) != 0 ||
		!slices.ContainsFunc(r.Overlay.LeftOut, func(n record.PathNote) bool { return n.Path == "sub/.git/config" }) {
		t.Errorf("overlay %+v", r.Overlay)
	}
	patch, err := os.ReadFile(filepath.Join(r.Dir, "workspace.patch"))
	if err != nil || !strings.Contains(string(patch), "+echo Hello\n") {
		t.Errorf("workspace.patch: %v\n%s", err, patch)
	}
	if created := of[record.SessionCreated](t, records)[0]; created.WorkspaceMode != "overlay" {
		t.Errorf("workspace mode %q", created.WorkspaceMode)
	}
	// The first read didn't wait for a sandbox. The others came after it and saw what commands
	// had written.
	text := told(records)
	for _, want := range []string{"echo Helo", "made", "greet.sh:1", "Makefile"} {
		if !strings.Contains(text, want) {
			t.Errorf("the model did not read %q", want)
		}
	}
	order := kinds(records)
	second := slices.Index(order, record.KindToolCompleted) + 1
	second += slices.Index(order[second:], record.KindToolCalled)
	if started := slices.Index(order, record.KindSandboxStarted); started < 0 || second < started {
		t.Errorf("a command is recorded before the sandbox that it runs in: %v", order)
	}
	// Kept changes are found by directory, and applied.
	l, err := sessiondir.OpenLastChanges(filepath.Join(filepath.Dir(b.dir), "state"), b.opts.Workspace.Dir, b.opts.Workspace.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Info().Session != r.Session {
		t.Errorf("found %s, want %s", l.Info().Session, r.Session)
	}
	if _, err := l.Apply(t.Context(), b.opts.Workspace.Dir, overlay.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if b.read("greet.sh") != "echo Hello\n" || b.read("old.txt") != "<none>" || b.read("sub/.git/config") != "<none>" || b.read("sub/.git/HEAD") == "<none>" {
		t.Error("not applied")
	}
}

func TestOverlayApply(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(b *bench)
		opts      func(o *Options)
		turns     string
		status    int
		state     overlay.State
		greet     string
	}{
		"at the end": {status: OutcomeDone, state: overlay.Kept, greet: "echo Hello\n"}, // sub/.git is left out
		"conflict": {
			meanwhile: func(b *bench) { b.file("old.txt", "the user's\n") },
			status:    OutcomeConflict, state: overlay.Kept, greet: "echo Helo\n",
		},
		"a limit": {
			opts:   func(o *Options) { o.Budget = limits.Budget{Rounds: new(int64(2))} },
			status: OutcomeLimit, state: overlay.Kept, greet: "echo Helo\n",
		},
		"nothing changed": {turns: "  - calls: [{tool: shell, input: {command: ok}}]\n  - text: done\n", status: OutcomeDone, state: overlay.Empty, greet: "echo Helo\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOverlayBench(t)
			b.opts.Apply = true
			b.backend.Scripts["ok"] = fakesandbox.WriteText("ok\n")
			work := b.backend.Scripts["work"]
			b.backend.Scripts["work"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
				defer func() {
					if tc.meanwhile != nil {
						tc.meanwhile(b)
					}
				}()
				return work(ctx, box, cmd)
			}
			if tc.opts != nil {
				tc.opts(&b.opts)
			}
			if tc.turns != "" {
				b.opts.Profiles = []loop.Profile{{Model: player(t, tc.turns)}}
			}
			r, _ := b.run(t.Context())
			if r.ExitStatus != tc.status || r.Overlay == nil || r.Overlay.State != tc.state || b.read("greet.sh") != tc.greet {
				t.Errorf("status %d, overlay %+v, problem %+v, greet.sh %q", r.ExitStatus, r.Overlay, r.Problem, b.read("greet.sh"))
			}
			if (r.ExitStatus == OutcomeDone) != (r.Problem == nil) {
				t.Errorf("problem %+v", r.Problem)
			}
		})
	}
}

func TestOverlayOutlivesItsSandbox(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: work}}]
  - calls: [{tool: shell, input: {command: die}}]
  - calls: [{tool: read_file, input: {path: made.txt}}]
  - text: done
`).overlaid()
	b.backend.Scripts["work"] = bash(t, `echo "before the loss" > made.txt`)
	b.backend.Scripts["die"] = fakesandbox.EndSandbox(true)
	r, records := b.run(t.Context())
	if r.Restarts != 1 || !strings.Contains(told(records), "before the loss") {
		t.Errorf("%d restarts; what was written is lost", r.Restarts)
	}
	if diff := cmp.Diff([]record.Changed{{Path: "made.txt", Change: "added", Insertions: 1, HasDiff: true}}, r.Changed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOverlayThatCantBeHad(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n  - text: done\n").overlaid()
	b.backend.OnCreate = func(context.Context, int) error {
		return fmt.Errorf("%w: no overlay here", sandbox.ErrUnsupported)
	}
	r, _ := b.run(t.Context())
	if r.ExitStatus != OutcomeSandboxStart || r.Problem == nil || !strings.Contains(r.Problem.Cause, "no overlay here") {
		t.Errorf("status %d, problem %+v", r.ExitStatus, r.Problem)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, sessiondir.OverlayDir, overlay.UpperDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("layers are left: %v", err)
	}
}

// TestKeptChangesAreOfTheWorkspace: the last session is the last one on this workspace, not on the
// machine.
func TestKeptChangesAreOfTheWorkspace(t *testing.T) {
	b := newOverlayBench(t)
	r, _ := b.run(t.Context())
	state := filepath.Join(filepath.Dir(b.dir), "state")
	elsewhere := t.TempDir()
	workspace, err := os.Open(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	defer workspace.Close()
	const later = "ses_zzzzzzzzzzzzzzzzzzzzzzzzzz"
	dir := filepath.Join(sessiondir.Path(state, later), sessiondir.OverlayDir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := overlay.Create(dir, overlay.CreateOptions{Session: later, Path: elsewhere, Workspace: workspace})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Record(t.Context(), workspace), other.End(overlay.Kept), other.Close()); err != nil {
		t.Fatal(err)
	}
	last, err := sessiondir.OpenLastChanges(state, b.opts.Workspace.Dir, b.opts.Workspace.Path)
	if err != nil {
		t.Fatal(err)
	}
	if last.Info().Session != r.Session {
		t.Errorf("the last session is %s, not %s", last.Info().Session, r.Session)
	}
	named, err := sessiondir.OpenChanges(state, later)
	if err != nil || named.Info().Session != later {
		t.Errorf("the other session can't be named: %v", err)
	}
}

// TestLastChangesAreTheNewest: a session that kept nothing is not skipped for an older one that did,
// which the error names. A check is skipped.
func TestLastChangesAreTheNewest(t *testing.T) {
	for name, c := range map[string]struct {
		state overlay.State
		by    string
		want  error // nil for the older session
	}{
		"it changed nothing":    {overlay.Empty, "", &sessiondir.UnchangedError{}},
		"it was killed":         {"", "", &sessiondir.UnchangedError{}},
		"it was applied":        {overlay.Applied, "", &sessiondir.ChangesError{}},
		"a user discarded it":   {overlay.Discarded, "user", &sessiondir.ChangesError{}},
		"it was a check":        {overlay.Discarded, "", nil},
		"a check found nothing": {overlay.Empty, "check", nil},
	} {
		t.Run(name, func(t *testing.T) {
			state, work := t.TempDir(), t.TempDir()
			workspace, err := os.Open(work)
			if err != nil {
				t.Fatal(err)
			}
			defer workspace.Close()
			make := func(id string, end overlay.State, by string) string {
				dir := sessiondir.Path(state, id)
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				l, err := overlay.Create(filepath.Join(dir, sessiondir.OverlayDir), overlay.CreateOptions{Session: id, Path: work, Workspace: workspace})
				if err == nil && end != "" {
					l.SetUser(by)
					err = errors.Join(l.Record(t.Context(), workspace), l.End(end))
				}
				if err := errors.Join(err, l.Close()); err != nil {
					t.Fatal(err)
				}
				return dir
			}
			make("ses_1", overlay.Kept, "")
			if last, err := sessiondir.OpenLastChanges(state, workspace, work); err != nil || last.Info().Session != "ses_1" {
				t.Fatalf("control: %v", err)
			}
			dir := make("ses_2", c.state, c.by)
			if c.by == "check" {
				if err := sessiondir.DiscardChanges(dir, ""); err != nil {
					t.Fatal(err)
				}
			}
			last, err := sessiondir.OpenLastChanges(state, workspace, work)
			older := ""
			if e, ok := errors.AsType[*sessiondir.UnchangedError](err); ok {
				older = e.Older
			} else if e, ok := errors.AsType[*sessiondir.ChangesError](err); ok {
				older = e.Older
			}
			if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", c.want) || err == nil && last.Info().Session != "ses_1" || err != nil && older != "ses_1" {
				t.Errorf("%v, older %q", err, older)
			}
		})
	}
}

func TestChangesExpire(t *testing.T) {
	b := newOverlayBench(t)
	r, _ := b.run(t.Context())
	state := filepath.Join(filepath.Dir(b.dir), "state")
	if gone, err := sessiondir.ExpireChanges(state, time.Hour); err != nil || len(gone) != 0 {
		t.Errorf("expired too early: %v, %v", gone, err)
	}
	held, err := sessiondir.OpenChanges(state, r.Session[:12])
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Lock(); err != nil {
		t.Fatal(err)
	}
	if gone, err := sessiondir.ExpireChanges(state, 0); err != nil || len(gone) != 0 {
		t.Errorf("expired while in use: %v, %v", gone, err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if gone, err := sessiondir.ExpireChanges(state, 0); err != nil || !slices.Equal(gone, []string{r.Session}) {
		t.Errorf("expired %v, %v", gone, err)
	}
	// A session that was killed before anything ran left its layers.
	dead := filepath.Join(sessiondir.Path(state, "ses_dead"), sessiondir.OverlayDir)
	if err := os.MkdirAll(filepath.Dir(dead), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := overlay.Create(dead, overlay.CreateOptions{Session: "ses_dead", Path: b.dir, Workspace: b.opts.Workspace.Dir})
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	if err := errors.Join(l.Close(), os.Chtimes(filepath.Dir(dead), long, long)); err != nil {
		t.Fatal(err)
	}
	if _, err := sessiondir.Sweep(state); err != nil { // a start finds only what Create made
		t.Error(err)
	}
	if gone, err := sessiondir.ExpireChanges(state, time.Hour); err != nil || len(gone) != 0 {
		t.Errorf("expired %v, %v", gone, err)
	}
	if _, err := os.Stat(filepath.Join(dead, overlay.UpperDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("layers of a session that never ran are left: %v", err)
	}
	_, err = sessiondir.OpenLastChanges(state, b.opts.Workspace.Dir, b.opts.Workspace.Path)
	if e, ok := errors.AsType[*sessiondir.UnchangedError](err); !ok || e.Info.Session != "ses_dead" || e.Older != "" {
		t.Errorf("after that: %v", err)
	}
	if err := os.RemoveAll(filepath.Dir(dead)); err != nil {
		t.Fatal(err)
	}
	_, err = sessiondir.OpenLastChanges(state, b.opts.Workspace.Dir, b.opts.Workspace.Path)
	if e, ok := errors.AsType[*sessiondir.ChangesError](err); !ok || e.Reason != sessiondir.ChangesGone || e.State != overlay.Expired || !strings.Contains(e.Error(), "not applied in time") {
		t.Errorf("after that: %v", err)
	}
	if _, err := sessiondir.OpenChanges(state, "ses_nope"); err == nil {
		t.Error("a session that is not there was found")
	}
}

// TestDeletedSettingsAreToldOf: a session on the directory above may remove what a workspace below
// forbids.
func TestDeletedSettingsAreToldOf(t *testing.T) {
	for mode, overlaid := range map[string]bool{"bind": false, "overlay": true} {
		t.Run(mode, func(t *testing.T) {
			b := newBench(t, "\n  - calls: [{tool: shell, input: {command: work}}]\n  - text: done\n")
			if overlaid {
				b = b.overlaid()
			}
			b.file("child/.caisson/config.yaml", "mode: overlay\n")
			b.file("moved/.caisson/config.yaml", "mode: overlay\n")
			b.file("child/Makefile", "all:\n")
			b.file("plain.txt", "x\n")
			b.backend.Scripts["work"] = bash(t, "rm -r child plain.txt; mv moved/.caisson moved/aside")
			r, _ := b.run(t.Context())
			want := []record.HostExecuted{
				{Path: "child/.caisson/config.yaml", By: "an agent", Deleted: true}, {Path: "moved/.caisson/config.yaml", By: "an agent", Deleted: true},
			}
			if diff := cmp.Diff(want, r.HostExecuted); diff != "" {
				t.Errorf("host-executed (-want +got):\n%s\nchanged: %+v", diff, r.Changed)
			}
		})
	}
}
