package runner

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// TestBackgroundOutlivesItsCall starts a command, runs others beside it, reads its output, kills
// it, and finds its end in the records.
func TestBackgroundOutlivesItsCall(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: serve, background: true}}]
  - calls: [{tool: shell, input: {command: echo}}]
  - calls: [{tool: shell_output, input: {handle: background-1}}]
  - calls: [{tool: shell_kill, input: {handle: background-1}}]
  - calls:
      - {tool: shell_output, input: {handle: background-1, tail: 1}}
      - {tool: shell_kill, input: {handle: background-1}}
      - {tool: shell_kill, input: {handle: background-2}}
      - {tool: shell_kill, input: {handle: ../../etc/passwd}}
  - text: done
`)
	started := make(chan struct{})
	b.backend.Scripts["serve"] = fakesandbox.WaitForEnd(started)
	b.backend.Scripts["echo"] = func(ctx context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		<-started // so that there is output to read
		return fakesandbox.WriteText("beside\n")(ctx, nil, cmd)
	}
	_, records := b.run(t.Context())
	text := told(records)
	for _, want := range []string{
		"started in the background: background-1",
		"[background-1: running for 0s; 7 bytes; lines 1 to 1, the end]\\nso far\\n",
		"background-1 was ended: killed by signal 15 (SIGTERM)", "Nothing of it is left.", "It wrote 7 bytes",
		"[background-1: killed by signal 15 (SIGTERM) (cancelled) after ",
		"background-1 had ended before",
		`no background command with the handle \"background-2\"`,
		`no background command with the handle \"../../etc/passwd\"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the model was not told %q", want)
		}
	}
	ended := of[record.BackgroundEnded](t, records)
	if len(ended) != 1 || ended[0].EndedBy != "shell_kill" || ended[0].Signal != 15 || ended[0].Handle != "background-1" || ended[0].Stdout.Bytes != 7 {
		t.Errorf("ended: %+v", ended)
	}
}

// TestBackgroundEndsWithItsSession, but not with its turn, even a cancelled one.
func TestBackgroundEndsWithItsSession(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: serve, background: true}}]
  - calls: [{tool: shell, input: {command: hang}}]
  - calls: [{tool: shell_output, input: {handle: background-1}}]
  - text: done
`)
	serving, hanging := make(chan struct{}), make(chan struct{})
	b.backend.Scripts["serve"] = fakesandbox.WaitForEnd(serving)
	b.backend.Scripts["hang"] = fakesandbox.WaitForEnd(hanging)
	s := b.opened()
	turn, err := s.Start("one")
	if err != nil {
		t.Fatal(err)
	}
	<-serving
	<-hanging
	turn.Cancel(errors.New("user"))
	if got := turn.Report(); got.Reason != "cancelled" {
		t.Errorf("the turn ended %s", got.Reason)
	}
	startTurn(t, s, "two")
	r := s.Close()
	b.backend.RequireGone(t)
	records := b.records(r)
	if text := told(records); !strings.Contains(text, "[background-1: running for ") {
		t.Error("the second turn did not see it run")
	}
	ended := of[record.BackgroundEnded](t, records)
	if len(ended) != 1 || ended[0].EndedBy != "session_end" {
		t.Errorf("ended: %+v", ended)
	}
	if last := records[len(records)-1]; last.Kind != record.KindSessionEnded {
		t.Errorf("the last record is %s", last.Kind)
	}
}

// TestBackgroundLosesItsSandbox: the loss ends it, and the next call is told.
func TestBackgroundLosesItsSandbox(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: dies, background: true}}]
  - calls: [{tool: shell, input: {command: echo}}]
  - calls: [{tool: shell, input: {command: echo}}, {tool: shell_output, input: {handle: background-1}}, {tool: shell_kill, input: {handle: background-1}}]
  - text: done
`)
	gone := make(chan struct{})
	b.backend.Scripts["dies"] = func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		defer close(gone)
		return fakesandbox.EndSandbox(true)(ctx, box, cmd)
	}
	b.backend.Scripts["echo"] = func(ctx context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		<-gone
		return fakesandbox.WriteText("again\n")(ctx, nil, cmd)
	}
	_, records := b.run(t.Context())
	text := told(records)
	for _, want := range []string{
		"The sandbox reached its limit", "again\\n", "[background-1: lost with its sandbox after", "had ended before: lost with its sandbox",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the model was not told %q", want)
		}
	}
	ended := of[record.BackgroundEnded](t, records)
	if len(ended) != 1 || ended[0].EndedBy != "sandbox_lost" || ended[0].Code != -1 || ended[0].Error == "" {
		t.Errorf("ended: %+v", ended)
	}
	if lost := of[record.SandboxLost](t, records); len(lost) != 1 || !lost[0].Restarting {
		t.Errorf("lost: %+v", lost)
	}
}
