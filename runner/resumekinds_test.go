package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
)

// listens gives the bench a listener as its model.
func (b *bench) listens() *listener {
	l := &listener{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: l, ContextWindow: b.opts.Profiles[0].ContextWindow}}
	return l
}

// TestResumeInOverlay resumes an overlay session that was killed between two changes: the fresh sandbox
// has the first, and both are the session's.
func TestResumeInOverlay(t *testing.T) {
	const turns = `
  - calls: [{tool: shell, input: {command: first}}]
  - calls: [{tool: list_dir, input: {path: .}}]
  - calls: [{tool: shell, input: {command: second}}]
  - text: Done.
`
	b := newBench(t, turns).overlaid()
	b.file("original", "o\n")
	b.backend.Scripts["first"] = bash(t, `echo one > one; rm original`)
	b.backend.Scripts["second"] = bash(t, `echo two > two`)
	b.run(t.Context())
	b.cut(record.KindTurnCompleted)
	c := b.goOn("  - text: unused\n  - text: unused\n  - text: unused\n  - text: unused\n  - calls: [{tool: shell, input: {command: third}}]\n  - text: Done again.\n")
	c.backend.Scripts["third"] = bash(t, `test "$(cat one two)" = "$(printf 'one\ntwo')"; test ! -e original; echo three > three`)
	c.opts.Task = "more"
	r, records := c.run(t.Context())
	if want := "one original three two"; changedPaths(r) != want {
		t.Errorf("changed %s, want %s", changedPaths(r), want)
	}
	if resumed := of[record.SessionResumed](t, records); len(resumed) != 1 || resumed[0].Changes != "kept" {
		t.Errorf("resumed %+v", resumed)
	}
	if !b.exists("original") || b.exists("one") {
		t.Error("the workspace itself was changed")
	}
}

// TestResumeOfFork goes on with a fork, whose first messages are in the records of its
// parent and whose first changes are in the frozen layer that it shares with the parent.
// Records of the parent that were changed are refused.
func TestResumeOfFork(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n  - text: Ready.\n").overlaid()
	b.backend.Scripts["work"] = bash(t, `echo common > common`)
	b.backend.Scripts["own"] = bash(t, `echo own > own`)
	b.opts.OnFork = func(_ int, o *Options) {
		o.Profiles = []loop.Profile{{Model: player(t, "  - calls: [{tool: shell, input: {command: own}}]\n  - text: Forked.\n")}}
	}
	s := b.opened()
	startTurn(t, s, "the first task")
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	parent := s.Close()
	startTurn(t, forks[0], "the task of the fork")
	before := forks[0].Close()
	goOn := func() *bench {
		c := *b
		dir, err := sessiondir.Reopen(filepath.Dir(filepath.Dir(before.Dir)), filepath.Base(before.Dir), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		c.opts.Dir, c.opts.Task = dir, "go on"
		c.opts.Profiles = []loop.Profile{{Model: player(t, "  - calls: [{tool: shell, input: {command: again}}]\n  - text: Done.\n")}}
		return &c
	}
	c := goOn()
	c.backend.Scripts["again"] = bash(t, `test "$(cat common own)" = "$(printf 'common\nown')"; echo more >> common; echo again > again`)
	heard := c.listens()
	r, records := c.run(t.Context())
	if want := "again common own"; r.Answer != "Done." || changedPaths(r) != want {
		t.Errorf("answered %q and changed %s, want %s", r.Answer, changedPaths(r), want)
	}
	for _, want := range []string{"the first task", "Ready.", "the task of the fork", "Forked.", "go on"} {
		if !strings.Contains(heard.heard, want) {
			t.Errorf("the model does not hear %q", want)
		}
	}
	if p := of[record.SessionCreated](t, records)[0].Parent; p == nil || p.Session != filepath.Base(parent.Dir) {
		t.Errorf("the parent is %+v", p)
	}
	if err := c.opts.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(parent.Dir, record.TraceFile)
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(trace, []byte(strings.Replace(string(text), "the first task", "another task!!", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), goOn().opts); resumeReason(err) != ResumeDamaged {
		t.Errorf("with changed records of the parent: %v", err)
		if err == nil {
			s.Close()
		}
	}
}

// TestResumeBehindSummary resumes a session whose oldest turns are summarised: the model gets the
// summary instead of them.
func TestResumeBehindSummary(t *testing.T) {
	b := newBench(t, "")
	m := &longModel{}
	b.opts.Profiles, b.opts.Budget = []loop.Profile{{Model: m, ContextWindow: 60_000}}, limits.Budget{}
	b.opts.Tools = []tools.Factory{func() tools.Tool { return &pageReader{page{text: strings.Repeat("func main() {}\n", 270)}} }}
	s := b.opened()
	turns := 0
	for ; m.summaries < 2; turns++ {
		startTurn(t, s, fmt.Sprintf("Turn %d.", turns))
		if turns > 200 {
			t.Fatal("there is no second summary")
		}
	}
	s.Close()
	c := b.reopen("  - text: unused\n")
	next := &longModel{n: 2} // it answers
	c.opts.Profiles[0] = loop.Profile{Model: next, ContextWindow: 60_000}
	heard := c.listens()
	c.opts.Task = "The turn behind the summary."
	r, records := c.run(t.Context())
	if r.Reason != loop.StopAnswered || r.Turns != turns+1 || next.summaries > 0 {
		t.Errorf("ended by %s after %d turns, with %d summaries", r.Reason, r.Turns, next.summaries)
	}
	if !strings.Contains(heard.heard, "Pages were read.") || strings.Contains(heard.heard, `"Turn 1."`) || !strings.Contains(heard.heard, fmt.Sprintf("Turn %d.", turns-1)) {
		t.Errorf("the model got %d bytes: %.400s", len(heard.heard), heard.heard)
	}
	if n := len(of[record.ContextCompacted](t, records)); n != 2 {
		t.Errorf("%d summaries", n)
	}
}

// TestContinueForUser lets another user than the one who resumed the session continue its turn: an
// administrator's tool runs only if an administrator continues it.
func TestContinueForUser(t *testing.T) {
	boss, other := User{Name: "http:boss", Admin: true}, User{Name: "http:other"}
	for _, user := range []User{boss, other} {
		b := newBench(t, "  - calls: [{tool: list_dir, input: {path: .}}]\n  - text: unused\n")
		b.run(t.Context())
		b.cut(record.KindToolCompleted)
		c := b.goOn("  - text: unused\n  - calls: [{tool: admin_probe, input: {}}]\n  - text: Done.\n")
		c.opts.User, c.opts.Task = boss, ""
		s := c.opened()
		ran := 0
		if err := s.tools.Register(func() tools.Tool { return &adminProbe{&ran} }); err != nil {
			t.Fatal(err)
		}
		turn, err := s.ContinueFor(user, TurnOptions{})
		if err != nil {
			t.Fatal(err)
		}
		turn.Report()
		if want := map[bool]int{true: 1}[user.Admin]; ran != want {
			t.Errorf("continued by %s it ran %d times, want %d", user.Name, ran, want)
		}
	}
}

// TestContinueWithLowerLimits: the turn's earlier usage counts.
func TestContinueWithLowerLimits(t *testing.T) {
	const turns = "  - calls: [{tool: list_dir, input: {path: .}}]\n  - calls: [{tool: list_dir, input: {path: .}}]\n  - calls: [{tool: list_dir, input: {path: .}}]\n  - text: Done.\n"
	b := newBench(t, turns)
	b.run(t.Context())
	b.cut(record.KindToolCompleted)
	c := b.goOn(turns)
	s := c.opened()
	if _, err := s.ContinueFor(c.opts.User, TurnOptions{Budget: limits.Budget{Rounds: new(int64(21))}}); !errors.As(err, new(*limits.RaisedError)) {
		t.Errorf("with higher limits: %v", err)
	}
	turn, err := s.ContinueFor(c.opts.User, TurnOptions{Budget: limits.Budget{Rounds: new(int64(2))}})
	if err != nil {
		t.Fatal(err)
	}
	if r := turn.Report(); r.Reason != loop.StopLimit || r.Usage.ToolCalls != 2 {
		t.Errorf("ended by %s, used %+v", r.Reason, r.Usage)
	}
}
