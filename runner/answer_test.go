package runner

import (
	"context"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// TestTextBeforeTheEndIsNoAnswer ends sessions in several ways after the model wrote a sentence.
func TestTextBeforeTheEndIsNoAnswer(t *testing.T) {
	const turns = "  - text: I look first.\n    calls: [{tool: shell, input: {command: \"true\"}}]\n  - text: All is well.\n"
	for name, c := range map[string]struct {
		turns  string
		change func(*bench)
		reason loop.StopReason
		answer string
	}{
		"a limit": {turns, func(b *bench) { b.opts.Budget = limits.Budget{Rounds: new(int64(1))} }, loop.StopLimit, "All is well."},
		"a limit, and no answer": {turns, func(b *bench) {
			b.opts.Budget = limits.Budget{Rounds: new(int64(1))}
			b.opts.Format = &AnswerFormat{Check: func(string) (string, []string) { return "", []string{"no form"} }}
		}, loop.StopLimit, ""},
		"no sandbox": {turns, func(b *bench) {
			b.backend.OnCreate = func(context.Context, int) error { return sandbox.ErrUnavailable }
		}, loop.StopSandboxStart, ""},
		"the model":               {"  - text: I look first.\n    calls: [{tool: shell, input: {command: \"true\"}}]\n", func(*bench) {}, loop.StopProviderFailed, ""},
		"the answer, the control": {turns, func(*bench) {}, loop.StopAnswered, "All is well."},
	} {
		b := newBench(t, c.turns)
		c.change(b)
		s := b.opened()
		turn := startTurn(t, s, "go")
		r := s.Close()
		ended := of[record.SessionEnded](t, b.records(r))
		if r.Reason != c.reason || turn.Answer != c.answer || r.Answer != c.answer || len(ended) != 1 || ended[0].Answer != c.answer {
			t.Errorf("ended by %s: %s, with the answers %q, %q, %q", name, r.Reason, turn.Answer, r.Answer, ended[0].Answer)
		}
	}
}
