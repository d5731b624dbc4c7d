package loop

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

func TestTurn(t *testing.T) {
	shell := &fakeDispatcher{names: []tools.Name{"shell"}}
	model := playResponses(callsResponse(`shell {"command":"ls"}`), textResponse("Done."))
	out, events := runTurn(t, t.Context(), newTestOptions(model, shell))

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
	if diff := cmp.Diff(want, addedMessages(events)); diff != "" {
		t.Errorf("messages in events (-want +got):\n%s", diff)
	}
	if out.Usage.Rounds != 2 || out.Usage.ToolCalls != 1 {
		t.Errorf("usage = %+v", out.Usage)
	}
	if got := len(model.requests[0].Tools); got != 1 {
		t.Errorf("offered %d tools, want 1", got)
	}
}

// TestWithoutTools checks that a turn without tools is one plain completion.
func TestWithoutTools(t *testing.T) {
	for name, d := range map[string]dispatcher{"no dispatcher": nil, "no tools": &fakeDispatcher{}} {
		t.Run(name, func(t *testing.T) {
			model := playResponses(textResponse("Hello."))
			out, _ := runTurn(t, t.Context(), newTestOptions(model, d))
			if out.Reason != StopAnswered || len(model.requests) != 1 || model.requests[0].Tools != nil {
				t.Errorf("outcome = %+v, requests %+v", out, model.requests)
			}
		})
	}
}

func TestCallsWithoutToolsAreNeverRun(t *testing.T) {
	for name, tt := range map[string]struct {
		answer Response
		want   StopReason
	}{
		"with text":    {answer: withText(callsResponse("shell {}"), "Here."), want: StopAnswered},
		"without text": {answer: callsResponse("shell {}"), want: StopProviderFailed},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeDispatcher{}
			model := playResponses(tt.answer)
			out, events := runTurn(t, t.Context(), newTestOptions(model, d))
			if out.Reason != tt.want || len(d.ran) != 0 || len(model.requests) != 1 {
				t.Errorf("reason %s, ran %d, requests %d", out.Reason, len(d.ran), len(model.requests))
			}
			if !slices.ContainsFunc(events, func(e Event) bool { r, ok := e.(CallRefused); return ok && r.Reason == "no_tools" }) {
				t.Errorf("no refusal for want of tools in %+v", events)
			}
		})
	}
}

// TestToolsAreTakenAway checks that if the last tool goes away, one more request
// without tools gives the answer.
func TestToolsAreTakenAway(t *testing.T) {
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	d.run = func(context.Context, tools.Call) (string, error) { d.names = nil; return "done", nil }
	model := playResponses(withText(callsResponse("shell {}"), "I look."), textResponse("It is so."), textResponse("never"))
	out, _ := runTurn(t, t.Context(), newTestOptions(model, d))
	if out.Reason != StopAnswered || out.Answer != "It is so." || len(model.requests) != 2 || model.requests[1].Tools != nil {
		t.Errorf("reason %s, answer %q, requests %+v", out.Reason, out.Answer, model.requests)
	}
}

func withText(r Response, text string) Response {
	r.Message.Blocks = append([]Block{{Text: &Text{Text: text}}}, r.Message.Blocks...)
	return r
}

// TestFinishReasonIsIgnored checks that only the presence of calls counts, not the
// finish reason.
func TestFinishReasonIsIgnored(t *testing.T) {
	stop, wrong := callsResponse("shell {}"), textResponse("Done.")
	stop.Finish, wrong.Finish = "stop", "tool_calls"
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	out, _ := runTurn(t, t.Context(), newTestOptions(playResponses(stop, wrong), d))
	if out.Reason != StopAnswered || out.Answer != "Done." || len(d.ran) != 1 {
		t.Errorf("outcome = %+v, ran %d", out, len(d.ran))
	}
}

// TestLongNames checks that names from servers are bounded in events.
func TestLongNames(t *testing.T) {
	r := textResponse("Done.")
	r.Model, r.Finish = strings.Repeat("é", 1<<20)+"x", strings.Repeat("stop", 1<<20)
	_, events := runTurn(t, t.Context(), newTestOptions(playResponses(r), nil))
	for _, e := range events {
		if c, ok := e.(ModelCallCompleted); ok && (len(c.Model.Model) != maxNameBytes || len(c.Finish) != maxNameBytes || !utf8.ValidString(c.Model.Model)) {
			t.Errorf("names of %d and %d bytes", len(c.Model.Model), len(c.Finish))
		}
	}
}

// TestTruncatedCall checks that a truncated call never runs, even if it looks
// complete.
func TestTruncatedCall(t *testing.T) {
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	cut := callsResponse(`shell {"command":"one"}`, `shell {"command":"rm -r build"}`)
	cut.Truncated = true
	out, _ := runTurn(t, t.Context(), newTestOptions(playResponses(cut, textResponse("Done.")), d))
	if len(d.ran) != 1 || string(d.ran[0].Input) != `{"command":"one"}` {
		t.Errorf("ran %+v", d.ran)
	}
	if got := out.History[2].toolUses()[1]; got.InputError != truncatedCall || string(got.Input) != "{}" || got.Raw != `{"command":"rm -r build"}` {
		t.Errorf("truncated call = %+v", got)
	}
	if out.Truncated {
		t.Error("the turn is truncated although the model recovered")
	}
	short := textResponse("The answer is")
	short.Truncated = true
	if out, _ := runTurn(t, t.Context(), newTestOptions(playResponses(short), nil)); !out.Truncated || out.Reason != StopAnswered {
		t.Errorf("a truncated answer: %+v", out)
	}
}

// TestMisbehavingDispatcher checks that every call has a result even if the dispatcher
// returns wrong ones.
func TestMisbehavingDispatcher(t *testing.T) {
	d := &brokenDispatcher{fakeDispatcher{names: []tools.Name{"shell"}}}
	out, _ := runTurn(t, t.Context(), newTestOptions(playResponses(callsResponse("shell {}", "shell {}", "shell {}"), textResponse("Done.")), d))
	if out.Reason != StopAnswered {
		t.Errorf("outcome = %+v", out)
	}
	lost := ToolResult{ToolUseID: "tu_001", Content: []tools.Block{{Text: refusedLost}}, IsError: true}
	if diff := cmp.Diff(lost, *out.History[3].Blocks[0].ToolResult); diff != "" {
		t.Errorf("the result that was left out (-want +got):\n%s", diff)
	}
}

// brokenDispatcher returns results in reverse, with an unknown one and without the
// first.
type brokenDispatcher struct{ fakeDispatcher }

func (m *brokenDispatcher) Round(ctx context.Context, all []tools.Call) ([]tools.Result, error) {
	results, err := m.fakeDispatcher.Round(ctx, all)
	return []tools.Result{{CallID: "tu_stranger"}, results[2], results[1]}, err
}

// TestInterruptedCalls checks that unfinished calls of an earlier run are never run.
func TestInterruptedCalls(t *testing.T) {
	d := &fakeDispatcher{names: []tools.Name{"shell"}}
	o := newTestOptions(playResponses(textResponse("I will look first.")), d)
	o.History = []Message{NewText(RoleUser, "Do it."), {Role: RoleAssistant, Blocks: []Block{
		{ToolUse: &ToolUse{ID: "tu_a", Name: "shell", Input: []byte(`{"command":"rm x"}`)}},
		{ToolUse: &ToolUse{ID: "tu_b", Name: "shell", Input: []byte(`{"command":"rm y"}`)}},
	}}, {Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{ToolUseID: "tu_a"}}}}}
	out, events := runTurn(t, t.Context(), o)
	if len(d.ran) != 0 || out.Reason != StopAnswered {
		t.Errorf("ran %v, reason %s", d.ran, out.Reason)
	}
	if r, ok := events[1].(CallRefused); !ok || r.CallID != "tu_b" || r.Reason != "interrupted" {
		t.Errorf("event %+v", events[1])
	}
}

func TestHistoryContinues(t *testing.T) {
	first, _ := runTurn(t, t.Context(), newTestOptions(playResponses(callsResponse("shell {}"), textResponse("One.")), &fakeDispatcher{names: []tools.Name{"shell"}}))
	model := playResponses(callsResponse("shell {}"), textResponse("Two."))
	o := newTestOptions(model, &fakeDispatcher{names: []tools.Name{"shell"}})
	o.History, o.NewID = first.History, newULID
	o.Messages = []Message{NewText(RoleUser, "Again.")}
	second, events := runTurn(t, t.Context(), o)
	if second.Answer != "Two." || len(model.requests[0].Messages) != len(first.History)+1 {
		t.Errorf("answer %q, sent %d messages", second.Answer, len(model.requests[0].Messages))
	}
	if got := addedMessages(events)[0]; got.Role != RoleUser {
		t.Errorf("reported again: %+v", got)
	}
	if u := second.History[len(first.History)+1].toolUses()[0]; u.ProviderID != "" {
		t.Errorf("a provider id was used twice: %+v", u)
	}
}

// TestAnswerIgnoresEarlierTurns checks that a failed turn doesn't report an earlier
// answer.
func TestAnswerIgnoresEarlierTurns(t *testing.T) {
	first, _ := runTurn(t, t.Context(), newTestOptions(playResponses(textResponse("One.")), nil))
	o := newTestOptions(&scriptModel{respond: func(int, Request, func(Delta)) (Response, error) { return Response{}, errors.New("down") }}, nil)
	o.History = first.History
	if out, _ := runTurn(t, t.Context(), o); out.Reason != StopProviderFailed || out.Answer != "" {
		t.Errorf("reason %s, answer %q", out.Reason, out.Answer)
	}
}

// TestProviderCountsAreIgnored checks that the loop counts rounds and calls itself.
func TestProviderCountsAreIgnored(t *testing.T) {
	answer := textResponse("Done.")
	answer.Usage = limits.Usage{Rounds: 5, ToolCalls: 7, InputTokens: 3}
	out, _ := runTurn(t, t.Context(), newTestOptions(playResponses(answer), nil))
	if diff := cmp.Diff(limits.Usage{Rounds: 1, InputTokens: 3}, out.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

// contextModel is a scriptModel that records the contexts of its calls.
type contextModel struct {
	scriptModel
	contexts []context.Context
}

func (m *contextModel) Complete(ctx context.Context, req Request, onDelta func(Delta)) (Response, error) {
	m.contexts = append(m.contexts, ctx)
	return m.scriptModel.Complete(ctx, req, onDelta)
}

func TestDeltas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := &contextModel{scriptModel: scriptModel{respond: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
			for _, d := range []Delta{{ToolName: "shell"}, {Text: "a"}, {Text: "b"}} {
				time.Sleep(time.Second)
				onDelta(d)
			}
			return textResponse("ab"), nil
		}}}
		_, events := runTurn(t, t.Context(), newTestOptions(model, nil))
		var texts []string
		for _, e := range events {
			switch e := e.(type) {
			case TextDelta:
				texts = append(texts, e.Text)
			case ModelCallCompleted:
				if e.FirstDeltaMS == nil || *e.FirstDeltaMS != 1000 || e.LatencyMS != 3000 {
					t.Errorf("%+v", e)
				}
			}
		}
		if diff := cmp.Diff([]string{"a", "b"}, texts); diff != "" {
			t.Errorf("text deltas (-want +got):\n%s", diff)
		}
		if model.contexts[0].Err() == nil {
			t.Error("the context of a call that has ended is not cancelled")
		}
	})
}

// TestUnrecordedDeltaCancelsCall checks that the failure to record a delta is the cause
// that cancels the model call.
func TestUnrecordedDeltaCancelsCall(t *testing.T) {
	full := errors.New("disk full")
	var model *contextModel
	model = &contextModel{scriptModel: scriptModel{respond: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
		onDelta(Delta{Text: "a"})
		cause := context.Cause(model.contexts[0])
		if !errors.Is(cause, full) {
			t.Errorf("the call goes on: %v", cause)
		}
		return Response{}, cause
	}}}
	o := newTestOptions(model, nil)
	o.Emit = func(e Event) error {
		if _, ok := e.(TextDelta); ok {
			return full
		}
		return nil
	}
	if out, _ := runTurn(t, t.Context(), o); out.Reason != StopTraceUnwritable {
		t.Errorf("outcome = %+v", out)
	}
}

// TestWallTimeContextIsCancelled checks that the wall time's context is released at the
// turn's end.
func TestWallTimeContextIsCancelled(t *testing.T) {
	var called context.Context
	d := &fakeDispatcher{names: []tools.Name{"shell"}, run: func(ctx context.Context, _ tools.Call) (string, error) {
		called = ctx
		return "ok", nil
	}}
	o := newTestOptions(playResponses(callsResponse("shell {}"), textResponse("Done.")), d)
	o.Budget.WallTime = new(time.Hour)
	runTurn(t, t.Context(), o)
	if called.Err() == nil {
		t.Error("the turn's context is not cancelled")
	}
}

// TestWarningsFollowUsage checks that a warning directly follows the answer or calls
// that reached four fifths of a limit.
func TestWarningsFollowUsage(t *testing.T) {
	o := newTestOptions(playResponses(callsResponse("shell {}", "shell {}", "shell {}", "shell {}"), withUsage(textResponse("Done."), 9, nil)), &fakeDispatcher{names: []tools.Name{"shell"}})
	o.Budget = limits.Budget{ToolCalls: new(int64(5)), Tokens: new(int64(10))}
	_, events := runTurn(t, t.Context(), o)
	var got []string
	for _, e := range events {
		switch e := e.(type) {
		case ModelCallStarted:
			got = append(got, "request")
		case BudgetWarning:
			got = append(got, string(e.What))
		}
	}
	if diff := cmp.Diff([]string{"request", "tool_calls", "request", "tokens"}, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestSystemPrompt(t *testing.T) {
	for name, tt := range map[string]struct {
		options   PromptOptions
		has, lack string
	}{
		"workspace":         {has: "The workspace is /workspace.", lack: "{"},
		"another workspace": {options: PromptOptions{Workspace: "/src"}, has: "The workspace is /src.", lack: "/workspace"},
		"no network":        {has: "There is no network", lack: "network access"},
		"network":           {options: PromptOptions{Network: true}, has: "network access that the operator allowed", lack: "no network"},
		"no instructions":   {has: "<caisson-output-ID>", lack: "Instructions of"},
		"instructions":      {options: PromptOptions{Instructions: "Be brief."}, has: "\n\n# Instructions of the operator\n\nBe brief."},
	} {
		got := string(SystemPrompt(tt.options))
		if !strings.Contains(got, tt.has) || tt.lack != "" && strings.Contains(got, tt.lack) {
			t.Errorf("%s: want %q and not %q in:\n%s", name, tt.has, tt.lack, got)
		}
	}
}

// A turn of calls needs no model. It ends with their results, in order.
func TestCallsOnly(t *testing.T) {
	for name, tt := range map[string]struct {
		budget limits.Budget
		names  []tools.Name
		reason StopReason
		ran    int
		roles  []Role
	}{
		"calls":         {names: []tools.Name{"shell"}, reason: StopAnswered, ran: 2, roles: []Role{RoleAssistant, RoleTool, RoleTool}},
		"one too many":  {names: []tools.Name{"shell"}, budget: limits.Budget{ToolCalls: new(int64(1))}, reason: StopLimit, ran: 1, roles: []Role{RoleAssistant, RoleTool, RoleTool}},
		"without tools": {reason: StopAnswered, roles: []Role{RoleAssistant, RoleTool, RoleTool}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &fakeDispatcher{names: tt.names}
			o := newTestOptions(nil, d)
			o.Profiles, o.Messages, o.System, o.Budget = nil, nil, "unused", tt.budget
			o.Calls = []ToolUse{{Name: "shell", Raw: `{"n": 1}`}, {Name: "shell"}}
			out, events := runTurn(t, t.Context(), o)
			var roles []Role
			for _, m := range out.History {
				roles = append(roles, m.Role)
			}
			if diff := cmp.Diff(tt.roles, roles); diff != "" || out.Reason != tt.reason || len(d.ran) != tt.ran || out.Answer != "" {
				t.Errorf("%+v, %d ran\n%s", out, len(d.ran), diff)
			}
			if tt.ran > 0 && string(d.ran[0].Input) != `{"n": 1}` {
				t.Errorf("input %s", d.ran[0].Input)
			}
			for _, e := range events {
				switch e.(type) {
				case ModelCallStarted, ModelCallCompleted, ModelCallFailed:
					t.Errorf("%T without a model", e)
				}
			}
		})
	}
}
