package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

func TestTurn(t *testing.T) {
	shell := &fakeTools{names: []tools.Name{"shell"}}
	model := answers(calls(`shell {"command":"ls"}`), says("Done."))
	out, events := run(t, t.Context(), options(model, shell))

	if out.Reason != StopAnswered || out.Answer != "Done." || out.Truncated || out.Limit != nil || out.Err != nil {
		t.Errorf("outcome = %+v", out)
	}
	use := ToolUse{ID: "tu_001", ProviderID: "call_0_shell", Name: "shell", Input: []byte(`{"command":"ls"}`)}
	want := []Message{
		NewText(RoleSystem, "You are a test."),
		NewText(RoleUser, "Do it."),
		{Role: RoleAssistant, Blocks: []Block{{ToolUse: &use}}},
		{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{ToolUseID: "tu_001", Content: []tools.Block{{Text: "ok"}}}}}},
		NewText(RoleAssistant, "Done."),
	}
	if diff := cmp.Diff(want, out.History); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, added(events)); diff != "" {
		t.Errorf("messages in events (-want +got):\n%s", diff)
	}
	if out.Usage.Rounds != 2 || out.Usage.ToolCalls != 1 {
		t.Errorf("usage = %+v", out.Usage)
	}
	if got := len(model.asked[0].Tools); got != 1 {
		t.Errorf("offered %d tools, want 1", got)
	}
}

// TestWithoutTools: an empty offered set is one plain completion.
func TestWithoutTools(t *testing.T) {
	for name, d := range map[string]dispatcher{"no dispatcher": nil, "no tools": &fakeTools{}} {
		t.Run(name, func(t *testing.T) {
			model := answers(says("Hello."))
			out, _ := run(t, t.Context(), options(model, d))
			if out.Reason != StopAnswered || len(model.asked) != 1 || model.asked[0].Tools != nil {
				t.Errorf("outcome = %+v, asked %+v", out, model.asked)
			}
		})
	}
}

func TestCallsWithoutToolsAreNeverRun(t *testing.T) {
	for name, tt := range map[string]struct {
		answer Response
		want   StopReason
	}{
		"with text":    {answer: withText(calls("shell {}"), "Here."), want: StopAnswered},
		"without text": {answer: calls("shell {}"), want: StopProviderFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeTools{}
			model := answers(tt.answer)
			out, _ := run(t, t.Context(), options(model, d))
			if out.Reason != tt.want || len(d.ran) != 0 || len(model.asked) != 1 {
				t.Errorf("reason %s, ran %d, asked %d", out.Reason, len(d.ran), len(model.asked))
			}
		})
	}
}

func withText(r Response, text string) Response {
	r.Message.Blocks = append([]Block{{Text: &Text{Text: text}}}, r.Message.Blocks...)
	return r
}

// TestPresenceDecides: finish reasons that lie change nothing.
func TestPresenceDecides(t *testing.T) {
	stop, wrong := calls("shell {}"), says("Done.")
	stop.Finish, wrong.Finish = "stop", "tool_calls"
	d := &fakeTools{names: []tools.Name{"shell"}}
	out, _ := run(t, t.Context(), options(answers(stop, wrong), d))
	if out.Reason != StopAnswered || out.Answer != "Done." || len(d.ran) != 1 {
		t.Errorf("outcome = %+v, ran %d", out, len(d.ran))
	}
}

func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		budget limits.Budget
		answer []Response
		// what comes of it
		kind           limits.Kind
		answered       string
		asked, ran     int
		closed, failed bool
	}{
		"rounds": {
			budget: limits.Budget{Rounds: new(int64(2))},
			answer: []Response{calls("shell 1"), calls("shell {}"), says("So far.")},
			kind:   limits.KindRounds, answered: "So far.", asked: 3, ran: 1, closed: true,
		},
		"rounds, answered in the last": {
			budget: limits.Budget{Rounds: new(int64(2))}, answer: []Response{calls("shell {}"), says("Done.")},
			answered: "Done.", asked: 2, ran: 1,
		},
		"tool calls in the middle of a round": {
			budget: limits.Budget{ToolCalls: new(int64(3))},
			answer: []Response{calls("shell {}"), calls("shell {}", "shell {}", "shell {}", "shell {}"), says("So far.")},
			kind:   limits.KindToolCalls, answered: "So far.", asked: 3, ran: 3, closed: true,
		},
		"tool calls used up exactly": {
			budget: limits.Budget{ToolCalls: new(int64(1))}, answer: []Response{calls("shell {}"), says("Done.")},
			answered: "Done.", asked: 2, ran: 1,
		},
		"tokens": {
			budget: limits.Budget{Tokens: new(int64(100))},
			answer: []Response{costs(withText(calls("shell {}"), "Looking."), 60, nil), costs(calls("shell {}"), 60, nil), says("never")},
			kind:   limits.KindTokens, answered: "Looking.", asked: 2, ran: 1,
		},
		"tokens used up by the answer": {
			budget: limits.Budget{Tokens: new(int64(100))}, answer: []Response{costs(says("Done."), 500, nil)},
			answered: "Done.", asked: 1,
		},
		"cost": {
			budget: limits.Budget{CostMicroUSD: new(int64(10))},
			answer: []Response{costs(calls("shell {}"), 1, new(int64(10))), says("never")},
			kind:   limits.KindCost, asked: 1,
		},
		"unknown cost is no cost": {
			budget: limits.Budget{CostMicroUSD: new(int64(10))},
			answer: []Response{costs(calls("shell {}"), 1000, nil), says("Done.")}, answered: "Done.", asked: 2, ran: 1,
		},
		"rounds, and no tokens for the closing": {
			budget: limits.Budget{Rounds: new(int64(1)), Tokens: new(int64(5))},
			answer: []Response{costs(calls("shell {}"), 5, nil), says("never")}, kind: limits.KindTokens, asked: 1,
		},
		"calls in the closing": {
			budget: limits.Budget{Rounds: new(int64(1))},
			answer: []Response{calls("shell {}"), withText(calls("shell {}", "shell {}"), "One more?"), says("never")},
			kind:   limits.KindRounds, answered: "One more?", asked: 2, ran: 1, closed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeTools{names: []tools.Name{"shell"}}
			model := answers(tt.answer...)
			o := options(model, d)
			o.Budget = tt.budget
			out, _ := run(t, t.Context(), o)
			want := StopLimit
			if tt.kind == "" {
				want = StopAnswered
			}
			if out.Reason != want || out.Truncated != (want == StopLimit) || out.Answer != tt.answered {
				t.Errorf("reason %s (%v), truncated %v, answer %q", out.Reason, out.Limit, out.Truncated, out.Answer)
			}
			if tt.kind != "" && (out.Limit == nil || out.Limit.Kind != tt.kind) {
				t.Errorf("limit = %v, want %s", out.Limit, tt.kind)
			}
			if len(model.asked) != tt.asked || len(d.ran) != tt.ran {
				t.Errorf("asked %d, ran %d; want %d, %d", len(model.asked), len(d.ran), tt.asked, tt.ran)
			}
			if last := model.asked[len(model.asked)-1]; tt.closed != (last.Tools == nil) {
				t.Errorf("last call offered %d tools, closing: %v", len(last.Tools), tt.closed)
			}
		})
	}
}

// TestClosingIsNoRound: the closing completion's tokens count, its round does not.
func TestClosingIsNoRound(t *testing.T) {
	o := options(answers(costs(calls("shell {}"), 5, nil), costs(says("So far."), 7, nil)), &fakeTools{names: []tools.Name{"shell"}})
	o.Budget.Rounds = new(int64(1))
	out, events := run(t, t.Context(), o)
	if out.Usage.Rounds != 1 || out.Usage.InputTokens != 12 {
		t.Errorf("usage = %+v", out.Usage)
	}
	var rounds []int
	for _, e := range events {
		if s, ok := e.(ModelCallStarted); ok {
			rounds = append(rounds, s.Round)
		}
	}
	if diff := cmp.Diff([]int{1, 0}, rounds); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
}

func TestWallTime(t *testing.T) {
	t.Run("in a tool", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeTools{names: []tools.Name{"shell"}, run: func(ctx context.Context, _ tools.Call) (string, error) {
				<-ctx.Done()
				return "", fmt.Errorf("stopped, partial output: 1 2 3: %w", context.Cause(ctx))
			}}
			o := options(answers(calls("shell {}")), d)
			o.Budget.WallTime = new(3 * time.Second)
			began := time.Now()
			out, _ := run(t, t.Context(), o)
			if out.Reason != StopLimit || out.Limit.Kind != limits.KindWallTime || !out.Truncated {
				t.Errorf("outcome = %+v", out)
			}
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("took %v", took)
			}
			if got := joinText(out.History[len(out.History)-1].Blocks[0].ToolResult.Content); !strings.Contains(got, "partial output") {
				t.Errorf("the result lost the tool's own words: %q", got)
			}
		})
	})
	t.Run("an answer that is there is kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			model := &scriptModel{answer: func(int, Request, func(Delta)) (Response, error) {
				time.Sleep(4 * time.Second)
				return says("Just in time."), nil
			}}
			o := options(model, nil)
			o.Budget.WallTime = new(3 * time.Second)
			out, _ := run(t, t.Context(), o)
			if out.Reason != StopAnswered || out.Answer != "Just in time." {
				t.Errorf("outcome = %+v", out)
			}
		})
	})
	t.Run("counts from the start of the run", func(t *testing.T) {
		o := options(answers(says("never")), nil)
		o.Budget.WallTime, o.Started = new(time.Second), time.Now().Add(-time.Minute)
		out, events := run(t, t.Context(), o)
		if out.Reason != StopLimit || len(events) != 4 {
			t.Errorf("outcome = %+v, events %v", out, events)
		}
	})
}

func TestCancelled(t *testing.T) {
	lost := fmt.Errorf("engine: %w", tools.ErrSandboxLost)
	over := &limits.ExceededError{Kind: limits.KindMemory, Limit: 1, Used: 2}
	for name, tt := range map[string]struct {
		cause error
		want  StopReason
	}{
		"by a person":       {cause: errors.New("interrupted"), want: StopCancelled},
		"by a limit":        {cause: over, want: StopLimit},
		"by a lost sandbox": {cause: lost, want: StopSandboxLost},
	} {
		t.Run(name, func(t *testing.T) {
			for _, where := range []string{"model", "tool", "between"} {
				ctx, cancel := context.WithCancelCause(t.Context())
				d := &fakeTools{names: []tools.Name{"shell"}, run: func(ctx context.Context, _ tools.Call) (string, error) {
					if where == "tool" {
						cancel(tt.cause)
					}
					return "ok", context.Cause(ctx)
				}}
				model := &scriptModel{answer: func(int, Request, func(Delta)) (Response, error) {
					switch where {
					case "model":
						cancel(tt.cause)
						return Response{}, fmt.Errorf("complete: %w", context.Cause(ctx))
					case "between":
						cancel(tt.cause)
					}
					return calls("shell {}", "shell {}"), nil
				}}
				out, _ := run(t, ctx, options(model, d))
				if out.Reason != tt.want || !errors.Is(out.Err, tt.cause) || len(model.asked) != 1 {
					t.Errorf("%s: reason %s, err %v, asked %d", where, out.Reason, out.Err, len(model.asked))
				}
				if where == "between" && len(d.ran) != 0 {
					t.Errorf("%s: %d calls ran after the cancellation", where, len(d.ran))
				}
			}
		})
	}
}

// TestInterruptedBeatsAnswer: a person's interrupt is never reported as success.
func TestInterruptedBeatsAnswer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	model := &scriptModel{answer: func(int, Request, func(Delta)) (Response, error) {
		cancel(errors.New("interrupted"))
		return says("Done."), nil
	}}
	if out, _ := run(t, ctx, options(model, nil)); out.Reason != StopCancelled || out.Answer != "Done." {
		t.Errorf("outcome = %+v", out)
	}
}

func TestDispatcherErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want StopReason
	}{
		"start":    {err: fmt.Errorf("image: %w", tools.ErrSandboxStart), want: StopSandboxStart},
		"lost":     {err: fmt.Errorf("gone: %w", tools.ErrSandboxLost), want: StopSandboxLost},
		"approver": {err: tools.ErrNoApprover, want: StopNoApprover},
		"record":   {err: errors.Join(errors.New("disk full"), tools.ErrRecord), want: StopTraceUnwritable},
		"limit":    {err: &limits.ExceededError{Kind: limits.KindPIDs}, want: StopLimit},
		"nameless": {err: errors.New("what?"), want: StopProviderFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeTools{names: []tools.Name{"shell"}, err: tt.err}
			model := answers(calls("shell {}", "shell {}"))
			out, _ := run(t, t.Context(), options(model, d))
			if out.Reason != tt.want || !errors.Is(out.Err, tt.err) || len(model.asked) != 1 {
				t.Errorf("reason %s, err %v, asked %d", out.Reason, out.Err, len(model.asked))
			}
		})
	}
}

func TestModelErrors(t *testing.T) {
	for class, want := range map[ErrorClass]StopReason{
		ModelAuth: StopAuth, ModelContextOverflow: StopLimit, ModelRateLimit: StopProviderFailed,
		ModelServer: StopProviderFailed, ModelNetwork: StopProviderFailed, ModelInvalidRequest: StopProviderFailed,
		ModelOther: StopProviderFailed, ModelCancelled: StopProviderFailed, "": StopProviderFailed,
	} {
		t.Run(string(class), func(t *testing.T) {
			cause := errors.New("secret words of the provider")
			model := &scriptModel{answer: func(int, Request, func(Delta)) (Response, error) {
				if class == "" {
					return Response{}, cause
				}
				return Response{}, &ModelError{Class: class, Status: 418, Err: cause}
			}}
			o := options(model, nil)
			o.ContextWindow = 1000
			out, events := run(t, t.Context(), o)
			if out.Reason != want || !errors.Is(out.Err, cause) {
				t.Errorf("reason %s, err %v", out.Reason, out.Err)
			}
			if class == ModelContextOverflow && (out.Limit.Kind != limits.KindContext || out.Limit.Limit != 1000 || !out.Truncated) {
				t.Errorf("limit = %+v", out.Limit)
			}
			failed := events[len(events)-2].(ModelCallFailed)
			if strings.Contains(failed.Message, "secret") || failed.Message == "" || failed.ErrorID == "" {
				t.Errorf("what the user sees: %+v", failed)
			}
		})
	}
}

func TestVisibleModelError(t *testing.T) {
	model := &scriptModel{answer: func(int, Request, func(Delta)) (Response, error) {
		return Response{}, &ModelError{Class: ModelOther, Visible: true, Err: errors.New("the script has no more turns")}
	}}
	_, events := run(t, t.Context(), options(model, nil))
	if got := events[len(events)-2].(ModelCallFailed).Message; got != "the script has no more turns" {
		t.Errorf("message = %q", got)
	}
}

// TestClosingFailure: the reason that a turn closed for stays its reason.
func TestClosingFailure(t *testing.T) {
	broken := &ModelError{Class: ModelServer, Err: errors.New("503")}
	model := &scriptModel{answer: func(n int, _ Request, _ func(Delta)) (Response, error) {
		if n == 2 {
			return Response{}, broken
		}
		return withText(calls("shell {}"), "Working."), nil
	}}
	o := options(model, &fakeTools{names: []tools.Name{"shell"}})
	o.Budget.Rounds = new(int64(1))
	out, _ := run(t, t.Context(), o)
	if out.Reason != StopLimit || out.Limit.Kind != limits.KindRounds || out.Answer != "Working." || !errors.Is(out.Err, broken) {
		t.Errorf("outcome = %+v", out)
	}
}

// TestEmitErrors: whatever event can't be recorded, nothing happens after it.
func TestEmitErrors(t *testing.T) {
	full := errors.New("disk full")
	for failAt := 1; ; failAt++ {
		d := &fakeTools{names: []tools.Name{"shell"}}
		model := answers(calls("shell {}", "shell {}"), says("Done."))
		o := options(model, d)
		n, ranThen, askedThen := 0, 0, 0
		o.Emit = func(Event) error {
			if n++; n == failAt {
				ranThen, askedThen = len(d.ran), len(model.asked)
				return full
			}
			if n > failAt {
				t.Fatalf("event %d after the failure at %d", n, failAt)
			}
			return nil
		}
		out, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		checkHistory(t, out.History)
		if n < failAt {
			if failAt < 10 {
				t.Fatalf("only %d events in a whole turn", n)
			}
			return
		}
		if out.Reason != StopTraceUnwritable || !errors.Is(out.Err, full) {
			t.Fatalf("failure at event %d: %+v", failAt, out)
		}
		if len(d.ran) != ranThen || len(model.asked) != askedThen {
			t.Fatalf("failure at event %d: calls %d → %d, model %d → %d", failAt, ranThen, len(d.ran), askedThen, len(model.asked))
		}
	}
}

func TestEmptyAnswer(t *testing.T) {
	blank := Response{Message: NewText(RoleAssistant, " \n")}
	thought := Response{Message: Message{Role: RoleAssistant, Blocks: []Block{{Thinking: &Thinking{Text: "hm"}}}}}
	for name, tt := range map[string]struct {
		answers []Response
		want    StopReason
		asked   int
	}{
		"once":            {answers: []Response{blank, says("Done.")}, want: StopAnswered, asked: 2},
		"twice":           {answers: []Response{blank, thought}, want: StopProviderFailed, asked: 2},
		"nothing at all":  {answers: []Response{{}, says("Done.")}, want: StopAnswered, asked: 2},
		"then calls":      {answers: []Response{thought, calls("shell {}"), says("Done.")}, want: StopAnswered, asked: 3},
		"after the calls": {answers: []Response{calls("shell {}"), blank, says("Done.")}, want: StopAnswered, asked: 3},
	} {
		t.Run(name, func(t *testing.T) {
			model := answers(tt.answers...)
			out, _ := run(t, t.Context(), options(model, &fakeTools{names: []tools.Name{"shell"}}))
			if out.Reason != tt.want || len(model.asked) != tt.asked {
				t.Errorf("reason %s, asked %d", out.Reason, len(model.asked))
			}
			for _, m := range out.History {
				if m.Role == RoleAssistant && m.text() == "" && len(m.toolUses()) == 0 {
					t.Errorf("an empty message is in the history: %+v", m)
				}
			}
		})
	}
}

func TestStuck(t *testing.T) {
	d := &fakeTools{names: []tools.Name{"shell"}, run: func(context.Context, tools.Call) (string, error) {
		return fmt.Sprintf("exit code 1 after %d ms", time.Now().UnixNano()%1000), nil
	}}
	model := answers(calls(`shell {"command":"make"}`))
	model.answer = func(n int, req Request, _ func(Delta)) (Response, error) {
		if req.Tools == nil {
			return says("I can't."), nil
		}
		return calls(`shell {"command":"make"}`), nil
	}
	out, _ := run(t, t.Context(), options(model, d))
	if out.Reason != StopStuck || !out.Truncated || out.Answer != "I can't." {
		t.Errorf("outcome = %+v", out)
	}
	if len(d.ran) != 6 {
		t.Errorf("ran %d times, want 3, a nudge, and 3", len(d.ran))
	}
	nudges := 0
	for _, m := range out.History {
		if m.text() == nudgeStuck {
			nudges++
		}
	}
	if nudges != 1 {
		t.Errorf("%d nudges", nudges)
	}
}

// TestCutCall: what the provider cut never runs, however complete it looks.
func TestCutCall(t *testing.T) {
	d := &fakeTools{names: []tools.Name{"shell"}}
	cut := calls(`shell {"command":"one"}`, `shell {"command":"rm -r build"}`)
	cut.Truncated = true
	out, _ := run(t, t.Context(), options(answers(cut, says("Done.")), d))
	if len(d.ran) != 1 || string(d.ran[0].Input) != `{"command":"one"}` {
		t.Errorf("ran %+v", d.ran)
	}
	if got := out.History[2].toolUses()[1]; got.InputError != cutCall || string(got.Input) != "{}" || got.Raw != `{"command":"rm -r build"}` {
		t.Errorf("cut call = %+v", got)
	}
	if out.Truncated {
		t.Error("a cut that the model mended marks the turn")
	}
	short := says("The answer is")
	short.Truncated = true
	if out, _ := run(t, t.Context(), options(answers(short), nil)); !out.Truncated || out.Reason != StopAnswered {
		t.Errorf("a cut answer: %+v", out)
	}
}

// TestMisbehavingDispatcher: a result for every call, whatever comes back.
func TestMisbehavingDispatcher(t *testing.T) {
	d := &misbehaving{fakeTools{names: []tools.Name{"shell"}}}
	out, _ := run(t, t.Context(), options(answers(calls("shell {}", "shell {}", "shell {}"), says("Done.")), d))
	if out.Reason != StopAnswered {
		t.Errorf("outcome = %+v", out)
	}
}

// misbehaving answers in reverse, with a stranger and without the first.
type misbehaving struct{ fakeTools }

func (m *misbehaving) Round(ctx context.Context, all []tools.Call) ([]tools.Result, error) {
	results, err := m.fakeTools.Round(ctx, all)
	return []tools.Result{{CallID: "tu_stranger"}, results[2], results[1]}, err
}

func TestManyCalls(t *testing.T) {
	var specs []string
	for range 300 {
		specs = append(specs, "shell {}")
	}
	d := &fakeTools{names: []tools.Name{"shell"}}
	out, events := run(t, t.Context(), options(answers(calls(specs...), says("Done.")), d))
	if out.Reason != StopAnswered || len(d.ran) != maxCalls {
		t.Errorf("reason %s, ran %d", out.Reason, len(d.ran))
	}
	refused := 0
	for _, e := range events {
		if r, ok := e.(CallRefused); ok && r.Reason == "too_many_calls" {
			refused++
		}
	}
	if refused != 300-maxCalls {
		t.Errorf("%d refusals", refused)
	}
}

func TestBudgetWarnings(t *testing.T) {
	o := options(answers(calls("shell 1"), calls("shell 2"), calls("shell 3"), calls("shell 4"), says("Done.")), &fakeTools{names: []tools.Name{"shell"}})
	o.Budget.Rounds = new(int64(5))
	_, events := run(t, t.Context(), o)
	var got []BudgetWarning
	for _, e := range events {
		if w, ok := e.(BudgetWarning); ok {
			got = append(got, w)
		}
	}
	if diff := cmp.Diff([]BudgetWarning{{Kind: limits.KindRounds, Limit: 5, Used: 4}}, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestHistoryContinues(t *testing.T) {
	first, _ := run(t, t.Context(), options(answers(calls("shell {}"), says("One.")), &fakeTools{names: []tools.Name{"shell"}}))
	model := answers(calls("shell {}"), says("Two."))
	o := options(model, &fakeTools{names: []tools.Name{"shell"}})
	o.History, o.NewID = first.History, newULID
	o.Messages = []Message{NewText(RoleUser, "Again.")}
	second, events := run(t, t.Context(), o)
	if second.Answer != "Two." || len(model.asked[0].Messages) != len(first.History)+1 {
		t.Errorf("answer %q, sent %d messages", second.Answer, len(model.asked[0].Messages))
	}
	if got := added(events)[0]; got.Role != RoleUser {
		t.Errorf("reported again: %+v", got)
	}
	if u := second.History[len(first.History)+1].toolUses()[0]; u.ProviderID != "" {
		t.Errorf("a provider id was used twice: %+v", u)
	}
}

func TestMisuse(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"no model":        {change: func(o *Options) { o.Model = nil }, want: ErrNoModel},
		"no session":      {change: func(o *Options) { o.Session = "" }, want: ErrInvalid},
		"no turn":         {change: func(o *Options) { o.Turn = "" }, want: ErrInvalid},
		"no message":      {change: func(o *Options) { o.Messages = nil }, want: ErrInvalid},
		"not the user's":  {change: func(o *Options) { o.Messages = []Message{NewText(RoleAssistant, "Hi.")} }, want: ErrInvalid},
		"negative window": {change: func(o *Options) { o.ContextWindow = -1 }, want: ErrInvalid},
		"zero rounds":     {change: func(o *Options) { o.Budget.Rounds = new(int64(0)) }, want: ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(answers(says("Hi.")), nil)
			tt.change(&o)
			if _, err := Run(t.Context(), o); !errors.Is(err, tt.want) {
				t.Errorf("Run() = %v, want %v", err, tt.want)
			}
		})
	}
}
