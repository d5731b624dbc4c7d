package runner

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// listener is a model that keeps the messages of its last call.
type listener struct {
	loop.Model
	heard string
}

func (l *listener) Complete(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	text, err := json.Marshal(req.Messages)
	if err != nil {
		return loop.Response{}, err
	}
	l.heard = string(text)
	return l.Model.Complete(ctx, req, onDelta)
}

// frozenLayers returns how many frozen layers the sessions of a bench have.
func (b *bench) frozenLayers() int {
	names, err := os.ReadDir(sessiondir.FrozenLayers(b.opts.Dir.Path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return len(names)
}

// TestFork: the forks and the session itself go on with the same conversation and
// files, and are apart from then on.
func TestFork(t *testing.T) {
	for _, mode := range []sandbox.WorkspaceMode{sandbox.ModeOverlay, sandbox.ModeCopy} {
		t.Run(string(mode), func(t *testing.T) { testFork(t, mode) })
	}
}

func testFork(t *testing.T, mode sandbox.WorkspaceMode) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: work}}, {tool: shell, input: {command: serve, background: true}}]
  - text: Ready.
  - calls: [{tool: shell, input: {command: parent}}]
  - text: Parent.
`).overlaid()
	b.opts.Mode = mode
	b.file("original", "o\n")
	serving := make(chan struct{})
	b.backend.Scripts["work"] = bash(t, `echo common > common; rm original`)
	b.backend.Scripts["serve"] = fakesandbox.WaitForEnd(serving)
	b.backend.Scripts["parent"] = bash(t, `test "$(cat common)" = common; test ! -e original; test ! -e own; echo p >> common`)
	models := []*listener{}
	b.opts.OnFork = func(number int, o *Options) {
		name := fmt.Sprint("fork", number)
		b.backend.Scripts[name] = bash(t, `test "$(cat common)" = common; test ! -e original; test ! -e own; echo `+name+` > own`)
		l := &listener{Model: player(t, "  - calls: [{tool: read_file, input: {path: common}}, {tool: shell, input: {command: "+name+"}}]\n  - text: Done.\n")}
		models = append(models, l)
		o.Profiles = []loop.Profile{{Model: l}}
	}
	s := b.opened()
	startTurn(t, s, "the first task")
	<-serving
	starts := len(b.backend.Sandboxes)
	forks, err := s.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if n := b.frozenLayers(); n != 1 || len(b.backend.Sandboxes) != starts {
		t.Errorf("%d frozen layers, %d sandboxes after the fork, %d before", n, len(b.backend.Sandboxes), starts)
	}
	if r := startTurn(t, s, "more"); r.Answer != "Parent." {
		t.Errorf("the parent's turn: %+v", r)
	}
	for i, f := range forks {
		if r := startTurn(t, f, "go on"); r.Answer != "Done." {
			t.Errorf("the turn of fork %d: %+v", i, r)
		}
		for _, want := range []string{"the first task", "Ready.", "continued in a fresh sandbox", "1 command in the background ended", "go on"} {
			if !strings.Contains(models[i].heard, want) {
				t.Errorf("the model of fork %d does not hear %q", i, want)
			}
		}
		r := f.Close()
		if want := "common original own"; changedPaths(r) != want {
			t.Errorf("fork %d changed %s, want %s", i, changedPaths(r), want)
		}
		created := of[record.SessionCreated](t, b.records(r))[0]
		if p := created.Parent; p == nil || p.Session != s.opts.Dir.Session || p.Turn == "" || p.Seq == 0 || len(p.SHA256) != 64 {
			t.Errorf("fork %d has the parent %+v", i, p)
		}
	}
	r := s.Close()
	records := b.checkSession(r)
	if want := "common original"; changedPaths(r) != want {
		t.Errorf("the parent changed %s, want %s", changedPaths(r), want)
	}
	if !strings.Contains(told(records), "continued in a fresh sandbox") || len(of[record.SandboxRestarted](t, records)) != 1 || len(of[record.SandboxLost](t, records)) != 0 || r.Restarts != 0 {
		t.Errorf("the parent was restarted %d times", r.Restarts)
	}
	if ended := of[record.BackgroundEnded](t, records); len(ended) != 1 || ended[0].EndedBy != "fork" {
		t.Errorf("ended: %+v", ended)
	}
	// The changes are kept one by one, and the last one takes the frozen layer.
	for _, dir := range []string{r.Dir, forks[0].dir, forks[1].dir} {
		if n := b.frozenLayers(); n != 1 {
			t.Errorf("%d frozen layers", n)
		}
		if err := sessiondir.DiscardChanges(dir, ""); err != nil {
			t.Error(err)
		}
	}
	if n := b.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
}

// changedPaths returns the changed files of a session.
func changedPaths(r Report) string {
	var names []string
	for _, c := range r.Changed {
		names = append(names, c.Path)
	}
	return strings.Join(names, " ")
}

// TestForkIsRefused in bind mode, while a turn or a command runs, and after the end.
func TestForkIsRefused(t *testing.T) {
	b := newBench(t, lastTurn)
	if _, err := b.opened().Fork(t.Context(), 2); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("in bind mode: %v", err)
	}
	b = newBench(t, "  - calls: [{tool: shell, input: {command: wait}}]\n"+lastTurn+lastTurn).overlaid()
	started := make(chan struct{})
	b.backend.Scripts["wait"] = fakesandbox.WaitForEnd(started)
	s := b.opened()
	turn, err := s.Start("one")
	if err != nil {
		t.Fatal(err)
	}
	<-started
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, ErrBusy) {
		t.Errorf("while a turn runs: %v", err)
	}
	turn.Cancel(errors.New("enough"))
	turn.Report()
	if _, err := s.Fork(t.Context(), 0); err == nil {
		t.Error("no forks at all")
	}
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	forks[0].Close()
	s.Close()
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, ErrOver) {
		t.Errorf("after its end: %v", err)
	}
}

// TestForkFails: a fork that can't be opened leaves the session as it was, and
// nothing of the others.
func TestForkFails(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n"+lastTurn+"  - calls: [{tool: shell, input: {command: check}}]\n"+lastTurn).overlaid()
	b.backend.Scripts["work"], b.backend.Scripts["check"] = bash(t, `echo x > made`), bash(t, `test -e made; rm made`)
	b.opts.OnFork = func(number int, o *Options) {
		if number == 1 {
			o.OnPrompt = "sometimes"
		}
	}
	s := b.opened()
	startTurn(t, s, "one")
	if forks, err := s.Fork(t.Context(), 3); err == nil || forks != nil {
		t.Errorf("forks %v, %v", forks, err)
	}
	startTurn(t, s, "two")
	if r := s.Close(); len(r.Changed) != 0 || r.Overlay.State != overlay.Empty {
		t.Errorf("it changed %+v, %+v", r.Changed, r.Overlay)
	}
	if n := b.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
}

// TestForkBeforeAnythingRan has nothing to freeze, and the forks read the directory.
func TestForkBeforeAnythingRan(t *testing.T) {
	b := newBench(t, lastTurn).overlaid()
	b.file("original", "o\n")
	b.opts.OnFork = func(_ int, o *Options) {
		o.Profiles = []loop.Profile{{Model: player(t, "  - calls: [{tool: read_file, input: {path: original}}]\n"+lastTurn)}}
	}
	forks, err := b.opened().Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if r := startTurn(t, forks[0], "read"); r.Reason != loop.StopAnswered || len(b.backend.Sandboxes) != 0 || b.frozenLayers() != 0 {
		t.Errorf("%+v with %d sandboxes and %d frozen layers", r, len(b.backend.Sandboxes), b.frozenLayers())
	}
	forks[0].Close()
}

// TestForkStartsOnDemand: neither a fork nor its session starts a sandbox before a call
// needs one.
func TestForkStartsOnDemand(t *testing.T) {
	turns := lastTurn + "  - calls: [{tool: read_file, input: {path: made}}]\n" + lastTurn
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n"+lastTurn+turns).overlaid()
	b.backend.Scripts["work"] = bash(t, `echo x > made`)
	b.opts.OnFork = func(_ int, o *Options) { o.Profiles = []loop.Profile{{Model: player(t, turns)}} }
	s := b.opened()
	startTurn(t, s, "work")
	forks, err := s.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for i, session := range append(forks, s) {
		for turn, want := range []int{i + 1, i + 2} {
			r := startTurn(t, session, "go on")
			if n := len(b.backend.Sandboxes); n != want || r.Reason != loop.StopAnswered {
				t.Errorf("%d sandboxes after turn %d of session %d, want %d; %+v", n, turn, i, want, r)
			}
		}
		session.Close()
	}
}

// TestForkOften forks a session more often than there may be layers, which are merged.
func TestForkOften(t *testing.T) {
	var turns strings.Builder
	b := newBench(t, "").overlaid()
	b.file("original", "o\n")
	forks := overlay.MaxLowers + 1
	for i := range forks {
		name := fmt.Sprint("work", i)
		fmt.Fprintf(&turns, "  - calls: [{tool: shell, input: {command: %s}}]\n%s", name, lastTurn)
		b.backend.Scripts[name] = bash(t, fmt.Sprintf(`rm -rf original dir f$((%[1]d-2)); mkdir dir; echo %[1]d > dir/d%[1]d; echo %[1]d > f%[1]d; chmod 7%[2]d0 dir`, i, i%8))
	}
	b.opts.Profiles = []loop.Profile{{Model: player(t, turns.String())}}
	s := b.opened()
	for i := range forks {
		startTurn(t, s, "go on")
		made, err := s.Fork(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if n := b.frozenLayers(); n > overlay.MaxLowers {
			t.Errorf("%d frozen layers after fork %d", n, i)
		}
		if err := sessiondir.DiscardChanges(made[0].Close().Dir, ""); err != nil {
			t.Error(err)
		}
	}
	last := forks - 1
	if want, r := fmt.Sprintf("dir/d%d f%d f%d original", last, last-1, last), s.Close(); changedPaths(r) != want || r.Incomplete {
		t.Errorf("changed %s, want %s", changedPaths(r), want)
	}
	if n := b.frozenLayers(); n != 2 {
		t.Errorf("%d frozen layers, want the merged one and one more", n)
	}
}

// The numbers of TestManyForks: -forks 50 -forkfiles 100000 are those that are measured.
// Half of the files are made by the session.
var (
	forkCount = flag.Int("forks", 5, "forks of TestManyForks")
	forkFiles = flag.Int("forkfiles", 200, "files in the workspace of TestManyForks")
)

// TestManyForks forks a session with many files, and logs how long that takes.
func TestManyForks(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n"+lastTurn).overlaid()
	fill := fmt.Sprintf(`for d in $(seq 100); do mkdir $1$d; (cd $1$d; seq %d | split -l 1 -a 4 -); done`, *forkFiles/200)
	if out, err := exec.Command("bash", "-ec", "cd "+b.dir+"; set -- original; "+fill).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.backend.Scripts["work"] = bash(t, "set -- made; "+fill)
	s := b.opened()
	startTurn(t, s, "one")
	begun := time.Now()
	forks, err := s.Fork(t.Context(), *forkCount)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d forks with %d files took %s", *forkCount, *forkFiles, time.Since(begun))
	if n := len(b.backend.Sandboxes); n != 1 || b.frozenLayers() != 1 {
		t.Errorf("%d sandboxes, %d frozen layers", n, b.frozenLayers())
	}
	for _, f := range forks {
		if names, err := os.ReadDir(filepath.Join(f.dir, sessiondir.OverlayDir, overlay.UpperDir)); err != nil || len(names) > 0 {
			t.Errorf("a fork begins with %d files of its own, %v", len(names), err)
		}
	}
	if r := forks[0].Close(); r.ChangedCount.Files != *forkFiles/200*100 {
		t.Errorf("a fork has %d changes", r.ChangedCount.Files)
	}
	for _, f := range forks {
		f.Close()
	}
}
