//go:build linux

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// A session without a model runs calls: with policy, records and sandbox as always, and
// without a sandbox for what only reads.
func TestCallWithoutModel(t *testing.T) {
	b := newBench(t, "")
	b.file("a.txt", "content\n")
	b.backend.Scripts["echo"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		return sandbox.ExitStatus{}
	}
	s := b.opened()
	if _, err := s.Start("hello"); !errors.Is(err, loop.ErrNoModel) {
		t.Errorf("Start: %v", err)
	}
	read, err := s.Call(t.Context(), "read_file", json.RawMessage(`{"path": "a.txt"}`))
	if err != nil || read.IsError || !strings.Contains(loop.ResultText(read.Content), "content") {
		t.Errorf("read_file: %+v, %v", read, err)
	}
	if n := len(b.backend.Sandboxes); n != 0 {
		t.Errorf("%d sandboxes for a call that reads", n)
	}
	if run, err := s.Call(t.Context(), "shell", json.RawMessage(`{"command": "echo"}`)); err != nil || run.IsError {
		t.Errorf("shell: %+v, %v", run, err)
	}
	if wrong, err := s.Call(t.Context(), "shell", json.RawMessage(`[]`)); err != nil || !wrong.IsError {
		t.Errorf("arguments that are no object: %+v, %v", wrong, err)
	}
	r := s.Close()
	b.backend.RequireGone(t)
	if r.ExitStatus != OutcomeDone || r.Turns != 3 || r.Usage.Rounds != 0 || r.Usage.ToolCalls != 3 {
		t.Errorf("%+v", r)
	}
	if _, err := s.Call(t.Context(), "read_file", nil); !errors.Is(err, ErrOver) {
		t.Errorf("a call of a closed session: %v", err)
	}
	records := b.records(r)
	for _, rec := range records {
		if strings.HasPrefix(string(rec.Kind), "llm.") || rec.Actor == record.ActorAgent {
			t.Errorf("%s by %s without a model", rec.Kind, rec.Actor)
		}
	}
	turns := of[record.TurnStarted](t, records)
	if len(turns) != 3 || of[record.SessionCreated](t, records)[0].Model.String() != "none" || len(of[record.SandboxStarted](t, records)) != 1 {
		t.Errorf("%d turns", len(turns))
	}
}

// The model of a session is not told of calls that were made beside its turns.
func TestCallBesideTurns(t *testing.T) {
	b := newBench(t, "  - text: First.\n")
	b.file("AGENTS.md", "Be brief.\n")
	b.opts.InstructionFiles = true
	s := b.opened()
	if _, err := s.Call(t.Context(), "read_file", json.RawMessage(`{"path": "AGENTS.md"}`)); err != nil {
		t.Fatal(err)
	}
	if turn := startTurn(t, s, "one"); turn.Answer != "First." {
		t.Errorf("%+v", turn)
	}
	if roles := s.history[0].Role; roles != loop.RoleSystem || len(s.history) != 4 {
		t.Errorf("the history of the model: %+v", s.history)
	}
	r := s.Close()
	if r.Answer != "First." || r.Turns != 2 {
		t.Errorf("%+v", r)
	}
	var actors []record.Actor // of the call's message, the call, and the model's answer
	for _, rec := range b.records(r) {
		if rec.Kind == record.KindToolCalled || rec.Kind == record.KindMessage && strings.Contains(string(rec.Payload), `"assistant"`) {
			actors = append(actors, rec.Actor)
		}
	}
	if want := []record.Actor{record.ActorUser, record.ActorUser, record.ActorAgent}; !slices.Equal(actors, want) {
		t.Errorf("actors %v, want %v", actors, want)
	}
}
