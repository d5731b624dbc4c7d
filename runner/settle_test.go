package runner

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// TestSettle: after its changes were applied or discarded, a session continues from the workspace as it
// is then.
func TestSettle(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: one}}]
  - text: first
  - calls: [{tool: shell, input: {command: two}}]
  - text: second
  - calls: [{tool: shell, input: {command: three}}]
  - text: third
`).overlaid()
	b.file("greet.sh", "echo Helo\n")
	b.backend.Scripts["one"] = bash(t, `echo Hello > greet.sh; echo made > made`)
	b.backend.Scripts["two"] = bash(t, `test "$(cat greet.sh)" = Hello; echo more >> greet.sh; rm made`)
	b.backend.Scripts["three"] = bash(t, `test "$(cat greet.sh)" = Hello; test -e made; echo third > third`)
	l := &listener{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: l}}
	s := b.opened()
	if r, err := s.ApplyChanges(t.Context()); err != nil || r.State != overlay.Empty {
		t.Errorf("before anything ran: %+v, %v", r, err)
	}
	startTurn(t, s, "begin")
	r, err := s.ApplyChanges(t.Context())
	if err != nil || r.State != overlay.Applied || len(r.Applied) != 2 || b.read("greet.sh") != "Hello\n" || b.read("made") != "made\n" {
		t.Fatalf("%+v, %v: greet.sh is %q", r, err, b.read("greet.sh"))
	}
	if d, err := s.Differences(t.Context()); err != nil || d.Count.Files != 0 {
		t.Errorf("after it was applied: %+v, %v", d.Count, err)
	}
	startTurn(t, s, "more")
	if !strings.Contains(l.heard, "2 files of the session applied to the workspace") {
		t.Errorf("the model is not told: %s", l.heard)
	}
	if b.read("greet.sh") != "Hello\n" {
		t.Error("the overlay is none any more")
	}
	if err := s.DiscardChanges(t.Context()); err != nil {
		t.Fatal(err)
	}
	startTurn(t, s, "again")
	end := s.Close()
	b.checkSession(end)
	if changedPaths(end) != "third" || end.Overlay.State != overlay.Kept {
		t.Errorf("changed %s, %+v", changedPaths(end), end.Overlay)
	}
}

// A conflict applies nothing, and the session continues with its changes.
func TestSettleConflict(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: one}}]\n  - text: first\n").overlaid()
	b.file("greet.sh", "echo Helo\n")
	b.backend.Scripts["one"] = bash(t, `echo Hello > greet.sh; echo made > made`)
	s := b.opened()
	startTurn(t, s, "begin")
	b.file("greet.sh", "the user's\n")
	r, err := s.ApplyChanges(t.Context())
	if err != nil || !r.Refused || len(r.Conflicts) != 1 || b.read("greet.sh") != "the user's\n" {
		t.Errorf("%+v, %v", r, err)
	}
	if end := s.Close(); changedPaths(end) != "greet.sh made" {
		t.Errorf("changed %s", changedPaths(end))
	}
}

func TestSettleIsRefused(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: wait}}]\n  - text: done\n")
	s := b.opened()
	if _, err := s.ApplyChanges(t.Context()); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("in bind mode: %v", err)
	}
	s.Close()
	b = newBench(t, "  - calls: [{tool: shell, input: {command: wait}}]\n  - text: done\n").overlaid()
	running := make(chan struct{})
	b.backend.Scripts["wait"] = fakesandbox.WaitForEnd(running)
	s = b.opened()
	turn, err := s.Start("begin")
	if err != nil {
		t.Fatal(err)
	}
	<-running
	if err := s.DiscardChanges(t.Context()); !errors.Is(err, ErrBusy) {
		t.Errorf("during a turn: %v", err)
	}
	turn.Cancel(errors.New("enough"))
	s.Close()
	if err := s.DiscardChanges(t.Context()); !errors.Is(err, ErrOver) {
		t.Errorf("after the end: %v", err)
	}
}
