package tools

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever calls, answers, cancels, timeouts and faults come together, each
// call has exactly one terminal event and one result, in request order, and
// nothing that nobody allowed has run.
func TestAnySequenceEndsEveryCallOnce(t *testing.T) {
	faults := map[string]bool{}
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) { anySequence(t, rand.New(rand.NewPCG(seed, 1)), faults) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, text := range []string{
		"completed true", "completed false", "failed cancelled", "failed timeout", "failed execution_error", "failed user_denied",
		"failed confirmation_timeout", "failed permission_denied", "failed not_found", "invalid", "warning",
	} {
		if !faults[text] {
			t.Errorf("no sequence had %q, so this test doesn't show what it says", text)
		}
	}
}

func anySequence(t *testing.T, rnd *rand.Rand, seen map[string]bool) {
	rec := &recorder{}
	pick := func(n int) bool { return rnd.IntN(n) == 0 }
	// What each call and answer does is decided beforehand: the calls run at once.
	type fate struct {
		work, answer time.Duration
		deaf         bool
		err          error
		panics       bool
		decision     Decision
		scope        Scope
	}
	fates := map[string]fate{}
	names := []string{"do_none", "do_read", "do_write", "do_execute", "do_network", "unknown"}
	inputs := []string{`{}`, `{"path":"a"}`, `{"path":"a"}`, `{"path":"b"}`, `{"path":"../x"}`, `{"path":1}`}
	var rounds [][]Call
	for r := range 1 + rnd.IntN(3) {
		var calls []Call
		for c := range 1 + rnd.IntN(8) {
			id := fmt.Sprintf("%d.%d", r, c)
			f := fate{work: time.Duration(rnd.IntN(40)) * time.Second, answer: time.Duration(rnd.IntN(30)) * time.Second, deaf: pick(8), panics: pick(12)}
			f.decision = []Decision{DecisionAllow, DecisionAllow, DecisionDeny, "?"}[rnd.IntN(4)]
			f.scope = []Scope{ScopeOnce, ScopeOnce, ScopeSession, ScopeAlways}[rnd.IntN(4)]
			f.err = []error{nil, nil, nil, errors.New("boom"), &Error{Class: ErrorExecution, Message: "no", Visible: true}}[rnd.IntN(5)]
			if pick(60) {
				f.err = ErrSandboxLost
			}
			fates[id] = f
			calls = append(calls, call(id, names[rnd.IntN(len(names))], inputs[rnd.IntN(len(inputs))]))
		}
		rounds = append(rounds, calls)
	}
	opts := Options{
		Policy: preset(t, []string{"strict", "default", "sandboxed", "ci"}[rnd.IntN(4)]), OnPrompt: []OnPrompt{OnPromptDeny, OnPromptAllow, OnPromptFail}[rnd.IntN(3)],
		Concurrency: 1 + rnd.IntN(4), ConfirmTimeout: 20 * time.Second, Abandon: 5 * time.Second,
	}
	if !pick(4) {
		opts.Broker = brokerFunc(func(ctx context.Context, c Confirmation) (Answer, error) {
			f := fates[c.CallID]
			select {
			case <-time.After(f.answer):
			case <-ctx.Done():
				return Answer{}, context.Cause(ctx)
			}
			if f.decision == "?" {
				return Answer{}, errors.New("nobody there")
			}
			return Answer{f.decision, f.scope}, nil
		})
	}
	d := newDispatcher(t, rec, opts)
	for i, class := range []Class{ClassNone, ClassRead, ClassWrite, ClassExecute, ClassNetwork} {
		def := testDefinition(names[i], class)
		def.Timeout = 25 * time.Second
		tool := fakeTool{def: def, execute: func(ctx context.Context, c *Call) (Output, error) {
			f := fates[c.ID]
			c.Delta("stdout", "x")
			stop := ctx.Done()
			if f.deaf {
				stop = nil
			}
			select {
			case <-time.After(f.work):
			case <-stop:
			}
			if f.panics {
				panic("boom")
			}
			return Output{Content: []Block{{Text: c.ID}}, Success: f.work/time.Second%2 == 0}, f.err
		}}
		if err := d.Register(tool.factory()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if pick(3) {
		time.AfterFunc(time.Duration(rnd.IntN(100))*time.Second, func() { cancel(errors.New("ctrl-c")) })
	}
	if pick(3) {
		time.AfterFunc(time.Duration(rnd.IntN(60))*time.Second, func() { d.Cancel(errors.New("turn cancelled")) })
	}
	var all []Call
	for _, calls := range rounds {
		results, err := d.Round(ctx, calls)
		all = append(all, calls...)
		if len(results) != len(calls) {
			t.Fatalf("%d results for %d calls", len(results), len(calls))
		}
		for i, r := range results {
			if r.CallID != calls[i].ID || len(r.Content) == 0 {
				t.Errorf("result %d is %+v", i, r)
			}
		}
		if err != nil {
			break
		}
	}
	checkTerminals(t, rec, all)
	checkApproved(t, rec, all)
	for _, ev := range rec.all() {
		_, text := brief(ev)
		seen[text] = true
	}
}

// checkApproved wants an allowing answer before every call that was asked about.
func checkApproved(t testing.TB, rec *recorder, calls []Call) {
	t.Helper()
	for _, c := range calls {
		asked, allowed, called := false, false, 0
		for _, ev := range rec.all() {
			if owner, _ := brief(ev); owner != c.ID {
				continue
			}
			switch ev := ev.(type) {
			case ConfirmationRequested:
				asked = true
			case ConfirmationResolved:
				asked, allowed = true, ev.Decision == DecisionAllow
			case Called:
				called++
				if asked && !allowed {
					t.Errorf("call %s ran without an answer that allows it", c.ID)
				}
			}
		}
		if called > 1 {
			t.Errorf("call %s ran %d times", c.ID, called)
		}
	}
}

// The check must see a call without an end, one with two, and one that goes on
// after its end.
func TestTerminalCheckSeesFaults(t *testing.T) {
	calls := []Call{{ID: "a"}}
	end := Completed{CallID: "a"}
	for name, events := range map[string][]Event{
		"no end":        {Called{CallID: "a"}},
		"two ends":      {end, Failed{CallID: "a"}},
		"output after":  {end, OutputDelta{CallID: "a"}},
		"another's end": {Called{CallID: "a"}, Completed{CallID: "b"}},
	} {
		if len(terminalProblems(&recorder{events: events}, calls)) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
	if wrong := terminalProblems(&recorder{events: []Event{Called{CallID: "a"}, end, Warning{CallID: "a"}}}, calls); len(wrong) > 0 {
		t.Errorf("a good sequence is refused: %q", wrong)
	}
}
