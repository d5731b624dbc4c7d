package server

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

const writes = `
  - calls: [{tool: shell, input: {command: "write a.txt new"}}]
  - calls: [{tool: shell, input: {command: "write b.txt also"}}]
  - text: Done.
`

// needRoot skips a test of overlays if they can't be mounted.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		lacking(t, "mounting an overlay needs root")
	}
}

// lacking skips a test that this machine can't run.
func lacking(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("REQUIRE_BACKENDS") != "" {
		t.Fatal(reason + ", and REQUIRE_BACKENDS asks for all tests")
	}
	t.Skip(reason)
}

func (w *testEnv) read(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return string(text)
}

func (w *testEnv) writeA(text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, "a.txt"), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *testEnv) diff(id string) Diff {
	w.t.Helper()
	var d Diff
	w.get("/sessions/"+id+"/diff").requireStatus(w.t, 200).decodeInto(w.t, &d)
	return d
}

func TestOverlayIsLookedAtAndApplied(t *testing.T) {
	needRoot(t)
	w := newTestEnv(t, writes)
	w.policy = "sandboxed"
	w.writeA("old\n")
	id := w.startSession("overlay")
	if d := w.diff(id); len(d.Files) != 0 || d.State != StateIdle || d.Changes != "kept" {
		t.Errorf("before anything: %+v", d)
	}
	w.waitForTurn(id, w.startTurn(id, "go"))
	live := w.diff(id)
	if len(live.Files) != 2 || !strings.Contains(live.Patch, "-old\n+new\n") || live.PatchPartial || w.read("a.txt") != "old\n" {
		t.Errorf("while it lives: %+v; a.txt is %q", live, w.read("a.txt"))
	}
	if patch := w.get("/sessions/"+id+"/patch").requireStatus(t, 200); patch.text != live.Patch || patch.header.Get("Content-Type") != "text/x-diff" {
		t.Errorf("the patch is %q as %s", patch.text, patch.header.Get("Content-Type"))
	}
	w.post("/sessions/"+id+"/apply", `{"dry_run":true}`).requireProblem(t, 409, "busy")

	// After a conflict nothing is applied, and the session has ended.
	w.writeA("mine\n")
	p := w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 409, "conflicts")
	if len(p.Conflicts) != 1 || p.Conflicts[0].Path != "a.txt" || w.read("a.txt") != "mine\n" || w.read("b.txt") != "" {
		t.Errorf("a conflict: %+v; a.txt is %q, b.txt %q", p, w.read("a.txt"), w.read("b.txt"))
	}
	w.backend.RequireGone(t)
	if kept := w.diff(id); kept.State != StateEnded || kept.Changes != "kept" || len(kept.Conflicts) != 1 || len(kept.Files) != 2 {
		t.Errorf("kept: %+v", kept)
	}
	var a Applied
	w.post("/sessions/"+id+"/apply", `{"dry_run":true,"skip_conflicts":true}`).requireStatus(t, 200).decodeInto(t, &a)
	if len(a.Applied) != 1 || !a.DryRun || w.read("b.txt") != "" {
		t.Errorf("a dry run: %+v, b.txt %q", a, w.read("b.txt"))
	}
	w.post("/sessions/"+id+"/apply", `{"skip_conflicts":true}`).requireStatus(t, 200).decodeInto(t, &a)
	if w.read("b.txt") != "also\n" || w.read("a.txt") != "mine\n" || a.Changes != "kept" {
		t.Errorf("the rest: %+v, b.txt %q", a, w.read("b.txt"))
	}
	w.writeA("old\n") // it is not as it was: its time differs
	by := func() string {
		l, err := overlay.Open(filepath.Join(sessiondir.Path(w.state, id), "overlay"))
		if err != nil {
			t.Fatal(err)
		}
		return string(l.Info().State) + " " + l.Info().By
	}
	if got := by(); got != "kept http:alice" {
		t.Errorf("after alice applied a part: %s", got)
	}
	w.post("/sessions/"+id+"/apply", `{"discard":true,"dry_run":true}`).requireProblem(t, 422, "invalid")
	w.do(bobToken, "POST", "/sessions/"+id+"/apply", `{"discard":true}`).requireStatus(t, 200).decodeInto(t, &a)
	if got := by(); got != "discarded http:bob" {
		t.Errorf("after bob discarded the rest: %s", got)
	}
	if a.Changes != "discarded" {
		t.Errorf("discarded: %+v", a)
	}
	w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 410, "changes_gone")
	if gone := w.diff(id); gone.Changes != "discarded" || len(gone.Files) != 2 || !strings.Contains(gone.Patch, "+new") {
		t.Errorf("afterwards: %+v", gone)
	}
}

// A symlink that leads out of the workspace is applied only on request, and
// only then is its conflict listed.
func TestApplyOfSymlinksOut(t *testing.T) {
	needRoot(t)
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: \"link out /etc/hostname\"}}, {tool: shell, input: {command: \"link in a.txt\"}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	w.writeA("old\n")
	id := w.startSession("overlay")
	w.waitForTurn(id, w.startTurn(id, "go"))
	var a Applied
	w.post("/sessions/"+id+"/apply", `{}`).requireStatus(t, 200).decodeInto(t, &a)
	if len(a.Applied) != 1 || a.Applied[0].Path != "in" || len(a.LeftOut) != 1 || a.LeftOut[0].Path != "out" || a.Changes != "kept" {
		t.Errorf("without the option: %+v", a)
	}
	if _, err := os.Lstat(filepath.Join(w.dir, "out")); !os.IsNotExist(err) {
		t.Errorf("the link is there: %v", err)
	}
	w.post("/sessions/"+id+"/apply", `{"discard":true,"with_symlinks_out":true}`).requireProblem(t, 422, "invalid")
	if err := os.WriteFile(filepath.Join(w.dir, "out"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p := w.post("/sessions/"+id+"/apply", `{"with_symlinks_out":true}`).requireProblem(t, 409, "conflicts")
	if len(p.Conflicts) != 1 || p.Conflicts[0].Path != "out" {
		t.Errorf("a conflict: %+v", p)
	}
	if err := os.Remove(filepath.Join(w.dir, "out")); err != nil {
		t.Fatal(err)
	}
	w.post("/sessions/"+id+"/apply", `{"with_symlinks_out":true}`).requireStatus(t, 200).decodeInto(t, &a)
	if target, err := os.Readlink(filepath.Join(w.dir, "out")); err != nil || target != "/etc/hostname" || a.Changes != "applied" {
		t.Errorf("with the option: %+v; the link leads to %q, %v", a, target, err)
	}
}

// More changes than can be listed are kept, not applied.
func TestApplyIsBounded(t *testing.T) {
	needRoot(t)
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: \"fill 2500\"}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	id := w.startSession("overlay")
	w.waitForTurn(id, w.startTurn(id, "go"))
	w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 409, "too_many")
	if entries, err := os.ReadDir(w.dir); err != nil || len(entries) > 0 {
		t.Errorf("the workspace has %v, %v", entries, err)
	}
	if d := w.diff(id); d.Changes != "kept" || d.Count.Files != 2500 {
		t.Errorf("kept: %s, %+v", d.Changes, d.Count)
	}
}

func TestApplyWaitsForNoTurn(t *testing.T) {
	needRoot(t)
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: \"write a.txt new\"}}]\n  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	id := w.startSession("overlay")
	turn := w.startTurn(id, "go")
	f := w.followEvents(id, "")
	f.until("tool.completed")
	w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 409, "busy")
	if d := w.diff(id); d.State != StateRunning || len(d.Files) != 1 {
		t.Errorf("while a turn runs: %+v", d)
	}
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	w.waitForTurn(id, turn)
	w.post("/sessions/"+id+"/apply", `{}`).requireStatus(t, 200)
	if w.read("a.txt") != "new\n" {
		t.Errorf("a.txt is %q", w.read("a.txt"))
	}
}

// Changes of a turn that a DELETE cut short are not applied. If the session was
// idle, apply waits for its end.
func TestApplyTakesNoTurnThatIsCutShort(t *testing.T) {
	needRoot(t)
	hangs := "  - calls: [{tool: shell, input: {command: \"write a.txt new\"}}]\n  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Done.\n"
	for name, c := range map[string]struct {
		turns   string
		running bool
	}{"a turn runs": {hangs, true}, "the control: idle": {writes, false}} {
		t.Run(name, func(t *testing.T) {
			closing, leave := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(leave) })
			w := newTestEnv(t, c.turns, func(o *Options) {
				prepare := o.Prepare
				o.Prepare = func(ctx context.Context, in NewSession) (runner.Options, func(), error) {
					ro, done, err := prepare(ctx, in)
					return ro, func() {
						close(closing) // the turn is over, and the session's end goes on
						<-leave
						done()
					}, err
				}
			})
			t.Cleanup(release)
			w.policy = "sandboxed"
			id := w.startSession("overlay")
			turn := w.startTurn(id, "go")
			if c.running {
				w.followEvents(id, "").until("tool.completed")
			} else {
				w.waitForTurn(id, turn)
			}
			// Without the refusal, this client would wait for the end.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			apply := func() answer {
				a, err := send(ctx, http.DefaultClient, w.base, aliceToken, "POST", "/sessions/"+id+"/apply", "{}")
				if err != nil {
					t.Error(err)
				}
				return a
			}
			var ended answer
			var requests sync.WaitGroup
			requests.Go(func() { ended, _ = send(ctx, http.DefaultClient, w.base, aliceToken, "DELETE", "/sessions/"+id, "") })
			<-closing
			if c.running {
				apply().requireProblem(t, 409, "busy")
				if got := w.read("a.txt"); got != "" {
					t.Errorf("a.txt is %q", got)
				}
			} else {
				requests.Go(func() {
					if a := apply(); a.status != 200 {
						t.Errorf("%d: %s", a.status, a.text)
					}
				})
			}
			release()
			requests.Wait()
			ended.requireStatus(t, 200)
			if c.running {
				w.post("/sessions/"+id+"/apply", "{}").requireStatus(t, 200) // a client has seen its end
			}
			if got := w.read("a.txt"); got != "new\n" {
				t.Errorf("a.txt is %q", got)
			}
		})
	}
}

func TestBindSessionsHaveADiffToo(t *testing.T) {
	w := newTestEnv(t, "  - calls: [{tool: write_file, input: {path: a.txt, content: \"new\\n\"}}, {tool: shell, input: {command: \"write b.txt also\"}}]\n  - text: Done.\n")
	w.policy = "sandboxed"
	w.writeA("old\n")
	id := w.startSession("bind")
	w.waitForTurn(id, w.startTurn(id, "go"))
	live := w.diff(id)
	w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 409, "no_changes")
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	past := w.diff(id)
	for when, d := range map[string]Diff{"live": live, "ended": past} {
		if len(d.Files) != 2 || !strings.Contains(d.Patch, "-old\n+new\n") || d.Mode != "bind" || d.Changes != "" {
			t.Errorf("%s: %+v", when, d)
		}
	}
	w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 409, "no_changes")
}
