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
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		budget         limits.Budget
		answer         []Response
		kind           limits.Kind
		answered       string
		requests, ran  int
		closed, failed bool
	}{
		"rounds": {
			budget: limits.Budget{Rounds: new(int64(2))},
			answer: []Response{callsResponse("shell 1"), callsResponse("shell {}"), textResponse("So far.")},
			kind:   limits.KindRounds, answered: "So far.", requests: 3, ran: 1, closed: true,
		},
		"rounds, answered in the last": {
			budget: limits.Budget{Rounds: new(int64(2))}, answer: []Response{callsResponse("shell {}"), textResponse("Done.")},
			answered: "Done.", requests: 2, ran: 1,
		},
		"tool calls in the middle of a round": {
			budget: limits.Budget{ToolCalls: new(int64(3))},
			answer: []Response{callsResponse("shell {}"), callsResponse("shell {}", "shell {}", "shell {}", "shell {}"), textResponse("So far.")},
			kind:   limits.KindToolCalls, answered: "So far.", requests: 3, ran: 3, closed: true,
		},
		"tool calls used up exactly": {
			budget: limits.Budget{ToolCalls: new(int64(1))}, answer: []Response{callsResponse("shell {}"), textResponse("Done.")},
			answered: "Done.", requests: 2, ran: 1,
		},
		"tokens": {
			budget: limits.Budget{Tokens: new(int64(100))},
			answer: []Response{withUsage(withText(callsResponse("shell {}"), "Looking."), 60, nil), withUsage(callsResponse("shell {}"), 60, nil), textResponse("never")},
			kind:   limits.KindTokens, answered: "Looking.", requests: 2, ran: 1,
		},
		"tokens used up by the answer": {
			budget: limits.Budget{Tokens: new(int64(100))}, answer: []Response{withUsage(textResponse("Done."), 500, nil)},
			answered: "Done.", requests: 1,
		},
		"cost": {
			budget: limits.Budget{CostMicroUSD: new(int64(10))},
			answer: []Response{withUsage(callsResponse("shell {}"), 1, new(int64(10))), textResponse("never")},
			kind:   limits.KindCost, requests: 1,
		},
		"unknown cost is no cost": {
			budget: limits.Budget{CostMicroUSD: new(int64(10))},
			answer: []Response{withUsage(callsResponse("shell {}"), 1000, nil), textResponse("Done.")}, answered: "Done.", requests: 2, ran: 1,
		},
		"rounds, and no tokens for the closing": {
			budget: limits.Budget{Rounds: new(int64(1)), Tokens: new(int64(5))},
			answer: []Response{withUsage(callsResponse("shell {}"), 5, nil), textResponse("never")}, kind: limits.KindTokens, requests: 1,
		},
		"calls in the closing": {
			budget: limits.Budget{Rounds: new(int64(1))},
			answer: []Response{callsResponse("shell {}"), withText(callsResponse("shell {}", "shell {}"), "One more?"), textResponse("never")},
			kind:   limits.KindRounds, answered: "One more?", requests: 2, ran: 1, closed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeDispatcher{names: []tools.Name{"shell"}}
			model := playResponses(tt.answer...)
			o := newTestOptions(model, d)
			o.Budget = tt.budget
			out, _ := runTurn(t, t.Context(), o)
			want := StopLimit
			if tt.kind == "" {
				want = StopAnswered
			}
			if out.Reason != want || out.Truncated != (want == StopLimit) || out.Answer != tt.answered {
				t.Errorf("reason %s (%v), truncated %v, answer %q", out.Reason, out.Limit, out.Truncated, out.Answer)
			}
			if calls := out.History[len(out.History)-1].Role == RoleTool; out.Closing != (tt.closed && !calls) {
				t.Errorf("closing: %v", out.Closing)
			}
			if tt.kind != "" && (out.Limit == nil || out.Limit.Kind != tt.kind) {
				t.Errorf("limit = %v, want %s", out.Limit, tt.kind)
			}
			if len(model.requests) != tt.requests || len(d.ran) != tt.ran {
				t.Errorf("requests %d, ran %d; want %d, %d", len(model.requests), len(d.ran), tt.requests, tt.ran)
			}
			last := model.requests[len(model.requests)-1]
			if tt.closed != (last.Tools == nil) {
				t.Errorf("last call offered %d tools, closing: %v", len(last.Tools), tt.closed)
			}
			if said := last.Messages[len(last.Messages)-1].joinedText(); tt.closed != strings.HasPrefix(said, NoticePrefix) {
				t.Errorf("the last message is %q, closing: %v", said, tt.closed)
			}
		})
	}
}

// TestClosingIsNotARound checks that the closing completion's tokens count, but not as
// a round.
func TestClosingIsNotARound(t *testing.T) {
	o := newTestOptions(playResponses(withUsage(callsResponse("shell {}"), 5, nil), withUsage(textResponse("So far."), 7, nil)), &fakeDispatcher{names: []tools.Name{"shell"}})
	o.Budget.Rounds = new(int64(1))
	out, events := runTurn(t, t.Context(), o)
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
			d := &fakeDispatcher{names: []tools.Name{"shell"}, run: func(ctx context.Context, _ tools.Call) (string, error) {
				<-ctx.Done()
				return "", fmt.Errorf("stopped, partial output: 1 2 3: %w", context.Cause(ctx))
			}}
			o := newTestOptions(playResponses(callsResponse("shell {}")), d)
			o.Budget.WallTime = new(3 * time.Second)
			began := time.Now()
			out, _ := runTurn(t, t.Context(), o)
			if out.Reason != StopLimit || out.Limit.Kind != limits.KindWallTime || !out.Truncated {
				t.Errorf("outcome = %+v", out)
			}
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("took %v", took)
			}
			if got := boundary.JoinText(out.History[len(out.History)-1].Blocks[0].ToolResult.Content); !strings.Contains(got, "partial output") {
				t.Errorf("the result lacks the output of the tool: %q", got)
			}
		})
	})
	t.Run("keeps a late answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) {
				time.Sleep(4 * time.Second)
				return textResponse("Just in time."), nil
			}}
			o := newTestOptions(model, nil)
			o.Budget.WallTime = new(3 * time.Second)
			out, _ := runTurn(t, t.Context(), o)
			if out.Reason != StopAnswered || out.Answer != "Just in time." {
				t.Errorf("outcome = %+v", out)
			}
		})
	})
	t.Run("counts from the start of the run", func(t *testing.T) {
		o := newTestOptions(playResponses(textResponse("never")), nil)
		o.Budget.WallTime, o.Started = new(time.Second), time.Now().Add(-time.Minute)
		out, events := runTurn(t, t.Context(), o)
		if out.Reason != StopLimit || len(events) != 4 {
			t.Errorf("outcome = %+v, events %v", out, events)
		}
	})
}

// TestClosingFailure checks that a failed closing completion doesn't change the stop
// reason.
func TestClosingFailure(t *testing.T) {
	broken := &ModelError{Class: ModelServer, Err: errors.New("503")}
	model := &scriptModel{respond: func(n int, _ Request, _ func(Delta)) (Response, error) {
		if n == 2 {
			return Response{}, broken
		}
		return withText(callsResponse("shell {}"), "Working."), nil
	}}
	o := newTestOptions(model, &fakeDispatcher{names: []tools.Name{"shell"}})
	o.Budget.Rounds = new(int64(1))
	out, _ := runTurn(t, t.Context(), o)
	if out.Reason != StopLimit || out.Limit.Kind != limits.KindRounds || !out.Truncated || out.Answer != "Working." || !errors.Is(out.Err, broken) {
		t.Errorf("outcome = %+v", out)
	}
}

func TestEmptyAnswer(t *testing.T) {
	blank := Response{Message: NewText(RoleAssistant, " \n")}
	thought := Response{Message: Message{Role: RoleAssistant, Blocks: []Block{{Thinking: &Thinking{Text: "hm"}}}}}
	for name, tt := range map[string]struct {
		answers  []Response
		want     StopReason
		requests int
	}{
		"once":            {answers: []Response{blank, textResponse("Done.")}, want: StopAnswered, requests: 2},
		"twice":           {answers: []Response{blank, thought}, want: StopProviderFailed, requests: 2},
		"nothing at all":  {answers: []Response{{}, textResponse("Done.")}, want: StopAnswered, requests: 2},
		"then calls":      {answers: []Response{thought, callsResponse("shell {}"), textResponse("Done.")}, want: StopAnswered, requests: 3},
		"now and then":    {answers: []Response{blank, callsResponse("shell {}"), blank, textResponse("Done.")}, want: StopAnswered, requests: 4},
		"after the calls": {answers: []Response{callsResponse("shell {}"), blank, textResponse("Done.")}, want: StopAnswered, requests: 3},
	} {
		t.Run(name, func(t *testing.T) {
			model := playResponses(tt.answers...)
			out, _ := runTurn(t, t.Context(), newTestOptions(model, &fakeDispatcher{names: []tools.Name{"shell"}}))
			if out.Reason != tt.want || len(model.requests) != tt.requests {
				t.Errorf("reason %s, requests %d", out.Reason, len(model.requests))
			}
			for _, m := range out.History {
				if m.Role == RoleAssistant && m.joinedText() == "" && len(m.toolUses()) == 0 {
					t.Errorf("an empty message is in the history: %+v", m)
				}
			}
		})
	}
}

func TestStuck(t *testing.T) {
	d := &fakeDispatcher{names: []tools.Name{"shell"}, run: func(context.Context, tools.Call) (string, error) {
		return fmt.Sprintf("exit code 1 after %d ms", time.Now().UnixNano()%1000), nil
	}}
	model := playResponses(callsResponse(`shell {"command":"make"}`))
	model.respond = func(n int, req Request, _ func(Delta)) (Response, error) {
		if req.Tools == nil {
			return textResponse("I can't."), nil
		}
		return callsResponse(`shell {"command":"make"}`), nil
	}
	out, _ := runTurn(t, t.Context(), newTestOptions(model, d))
	if out.Reason != StopStuck || !out.Truncated || out.Answer != "I can't." {
		t.Errorf("outcome = %+v", out)
	}
	if len(d.ran) != 6 {
		t.Errorf("ran %d times, want 3, a nudge, and 3", len(d.ran))
	}
	nudges := 0
	for _, m := range out.History {
		if m.joinedText() == nudgeStuck {
			nudges++
		}
	}
	if nudges != 1 {
		t.Errorf("%d nudges", nudges)
	}
}

func TestManyCalls(t *testing.T) {
	var specs []string
	for range 300 {
		specs = append(specs, "shell {}")
	}
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	out, events := runTurn(t, t.Context(), newTestOptions(playResponses(callsResponse(specs...), textResponse("Done.")), d))
	if out.Reason != StopAnswered || len(d.ran) != maxCalls {
		t.Errorf("reason %s, ran %d", out.Reason, len(d.ran))
	}
	refused := 0
	for _, e := range events {
		if r, ok := e.(CallRefused); ok && r.Reason == "too_many_calls" {
			refused++
		}
	}
	failed := 0
	for _, m := range out.History {
		if m.Role == RoleTool && m.Blocks[0].ToolResult.IsError {
			failed++
		}
	}
	if refused != 300-maxCalls || failed != refused {
		t.Errorf("%d refusals, %d of them errors", refused, failed)
	}
}

func TestBudgetWarnings(t *testing.T) {
	o := newTestOptions(playResponses(callsResponse("shell 1"), callsResponse("shell 2"), callsResponse("shell 3"), callsResponse("shell 4"), textResponse("Done.")), &fakeDispatcher{names: []tools.Name{"shell"}})
	o.Budget.Rounds = new(int64(5))
	_, events := runTurn(t, t.Context(), o)
	var got []BudgetWarning
	for _, e := range events {
		if w, ok := e.(BudgetWarning); ok {
			got = append(got, w)
		}
	}
	if diff := cmp.Diff([]BudgetWarning{{What: limits.KindRounds, Limit: 5, Used: 4}}, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// A round's results may take half of what is left of the window.
func TestMaxResultBytes(t *testing.T) {
	for _, tt := range []struct {
		window, used, output int64
		calls, want          int
	}{
		{0, 0, 0, 4, 0},
		{128_000, 8_000, 0, 1, 240_000},
		{128_000, 8_000, 20_000, 4, 50_000},
		{8_000, 2_000, 1_000, 1, 10_000},
		{8_000, 7_900, 1_000, 1, minResultBytes},
		{8_000, 9_000, 0, 256, minResultBytes},
	} {
		turn := &turn{profile: Profile{ContextWindow: tt.window, MaxOutputTokens: tt.output}, view: NewView(nil)}
		turn.view.tokens = tt.used
		if got := turn.maxResultBytes(tt.calls); got != tt.want {
			t.Errorf("%+v: %d bytes", tt, got)
		}
	}
}
