package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// TestDecide asks deciders that answer, fail and lie. Only a valid allow with the
// question's own ID allows.
func TestDecide(t *testing.T) {
	type asker = func(ctx context.Context, q deciderQuestion) (string, error)
	answer := func(d Decision) asker {
		return func(_ context.Context, q deciderQuestion) (string, error) {
			return fmt.Sprintf(`{"id":%q,"decision":%q,"reason":"be\u001bcause","more":1}`, q.ID, d), nil
		}
	}
	text := func(s string) asker {
		return func(context.Context, deciderQuestion) (string, error) { return s, nil }
	}
	for name, tc := range map[string]struct {
		ask     asker
		prompt  bool
		want    Decision
		failure string // part of the error; "" if it answered
	}{
		"allow":                       {ask: answer(DecisionAllow), want: DecisionAllow},
		"deny":                        {ask: answer(DecisionDeny), want: DecisionDeny},
		"ask":                         {ask: answer(DecisionAsk), want: DecisionAsk},
		"deny a prompt":               {ask: answer(DecisionDeny), prompt: true, want: DecisionDeny},
		"nothing":                     {ask: text(""), failure: "not a JSON object"},
		"null":                        {ask: text("null"), failure: "question's id"},
		"garbage":                     {ask: text("allow\n"), failure: "not a JSON object"},
		"two answers":                 {ask: text(`{"id":"00ff","decision":"deny"}{"id":"00ff","decision":"allow"}`), failure: "not a JSON object"},
		"a list":                      {ask: text(`[{"id":"00ff","decision":"allow"}]`), failure: "question's id"},
		"the answer to another call":  {ask: text(`{"id":"00fe","decision":"allow"}`), failure: "question's id"},
		"no id":                       {ask: text(`{"decision":"allow"}`), failure: "question's id"},
		"one decision, then another":  {ask: text(`{"id":"00ff","decision":"deny","decision":"allow"}`), failure: "given twice"},
		"keys in other letters":       {ask: text(`{"id":"00ff","Decision":"allow"}`), failure: "not allow, deny or ask"},
		"a reason that is no text":    {ask: text(`{"id":"00ff","decision":"allow","reason":[1]}`), failure: "not a text"},
		"no decision":                 {ask: text(`{"id":"00ff"}`), failure: "not allow, deny or ask"},
		"a decision in other letters": {ask: text(`{"id":"00ff","decision":"ALLOW"}`), failure: "not allow, deny or ask"},
		"a number":                    {ask: text(`{"id":"00ff","decision":1}`), failure: "not allow, deny or ask"},
		"too long":                    {ask: text(`{"id":"00ff","decision":"allow","reason":"` + strings.Repeat("x", MaxDecisionBytes) + `"}`), failure: "at most 65536"},
		"killed":                      {ask: func(context.Context, deciderQuestion) (string, error) { return "", errors.New("signal: killed") }, failure: "signal: killed"},
		"an answer and an error": {ask: func(context.Context, deciderQuestion) (string, error) {
			return `{"id":"00ff","decision":"allow"}`, errors.New("exit status 1")
		}, failure: "exit status 1"},
		"too late": {ask: func(ctx context.Context, _ deciderQuestion) (string, error) {
			<-ctx.Done()
			return `{"id":"00ff","decision":"allow"}`, nil
		}, failure: "no answer within 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, askOnFailure := range []bool{false, true} {
				d := NewDecider(Decider{Name: "x.sh", Timeout: 50 * time.Millisecond, AskOnFailure: askOnFailure, Ask: func(ctx context.Context, workspace string, raw []byte) ([]byte, error) {
					var q deciderQuestion
					if err := json.Unmarshal(raw, &q); err != nil {
						return nil, err
					}
					if wanted := map[bool]string{false: "auto", true: "prompt"}[tc.prompt]; q.Policy != wanted || q.Version != 1 || workspace != "/w" || q.Workspace != workspace || string(q.Input) != `{"command":"ls"}` {
						return nil, fmt.Errorf("asked %s", raw)
					}
					out, err := tc.ask(ctx, q)
					return []byte(out), err
				}})
				c := Confirmation{Question: Question{ID: "00ff", Name: "shell", Class: tools.ClassExecute}, Exact: json.RawMessage(`{"command":"ls"}`)}
				want := tc.want
				if tc.failure != "" {
					want = map[bool]Decision{false: DecisionDeny, true: DecisionAsk}[askOnFailure]
				}
				a, err := d.Decide(t.Context(), Case{Confirmation: c, Dir: "/w", Prompt: tc.prompt})
				if a.Decision != want || (err != nil) != (tc.failure != "") || err != nil && !strings.Contains(err.Error(), tc.failure) || strings.Contains(a.Reason, "\x1b") {
					t.Errorf("ruled %+v with %v, want %s", a, err, want)
				}
			}
		})
	}
}

// TestManyDecisions asks for 1,000 rulings at once. Each call gets its own, and the
// decider never has more questions than it may.
func TestManyDecisions(t *testing.T) {
	var at, most atomic.Int32
	d := NewDecider(Decider{Name: "x", Timeout: time.Minute, Ask: func(_ context.Context, _ string, raw []byte) ([]byte, error) {
		if n := at.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer at.Add(-1)
		var q deciderQuestion
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		decision := DecisionAllow
		if strings.HasSuffix(q.Summary, "3") {
			decision = DecisionDeny
		}
		return json.Marshal(map[string]any{"id": q.ID, "decision": decision})
	}})
	var all sync.WaitGroup
	for n := range 1000 {
		all.Go(func() {
			text := fmt.Sprint(n)
			a, err := d.Decide(t.Context(), Case{Confirmation: Confirmation{Question: Question{ID: text, Summary: text}, Exact: json.RawMessage("{}")}})
			if err != nil || (a.Decision == DecisionDeny) != strings.HasSuffix(text, "3") {
				t.Errorf("call %d: %+v, %v", n, a, err)
			}
		})
	}
	all.Wait()
	if most.Load() > maxDeciding {
		t.Errorf("%d questions at once", most.Load())
	}
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	for range maxDeciding {
		d.slots <- struct{}{} // it hangs
	}
	if a, err := d.Decide(cancelled, Case{Confirmation: Confirmation{Question: Question{ID: "1"}, Exact: json.RawMessage("{}")}}); a.Decision != DecisionDeny || err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("after a cancellation: %+v, %v", a, err)
	}
}
