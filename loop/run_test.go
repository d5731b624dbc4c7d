package loop

import (
	"context"
	"errors"
	"slices"
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
			out, events := run(t, t.Context(), options(model, d))
			if out.Reason != tt.want || len(d.ran) != 0 || len(model.asked) != 1 {
				t.Errorf("reason %s, ran %d, asked %d", out.Reason, len(d.ran), len(model.asked))
			}
			if !slices.ContainsFunc(events, func(e Event) bool { r, ok := e.(CallRefused); return ok && r.Reason == "no_tools" }) {
				t.Errorf("no refusal for want of tools in %+v", events)
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
	lost := ToolResult{ToolUseID: "tu_001", Content: []tools.Block{{Text: refusedLost}}, IsError: true}
	if diff := cmp.Diff(lost, *out.History[3].Blocks[0].ToolResult); diff != "" {
		t.Errorf("the result that was left out (-want +got):\n%s", diff)
	}
}

// misbehaving answers in reverse, with a stranger and without the first.
type misbehaving struct{ fakeTools }

func (m *misbehaving) Round(ctx context.Context, all []tools.Call) ([]tools.Result, error) {
	results, err := m.fakeTools.Round(ctx, all)
	return []tools.Result{{CallID: "tu_stranger"}, results[2], results[1]}, err
}

// TestInterruptedCalls: what an earlier run left under way is never run again.
func TestInterruptedCalls(t *testing.T) {
	d := &fakeTools{names: []tools.Name{"shell"}}
	o := options(answers(says("I will look first.")), d)
	o.History = []Message{NewText(RoleUser, "Do it."), {Role: RoleAssistant, Blocks: []Block{
		{ToolUse: &ToolUse{ID: "tu_a", Name: "shell", Input: []byte(`{"command":"rm x"}`)}},
		{ToolUse: &ToolUse{ID: "tu_b", Name: "shell", Input: []byte(`{"command":"rm y"}`)}},
	}}, {Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{ToolUseID: "tu_a"}}}}}
	out, events := run(t, t.Context(), o)
	if len(d.ran) != 0 || out.Reason != StopAnswered {
		t.Errorf("ran %v, reason %s", d.ran, out.Reason)
	}
	if r, ok := events[1].(CallRefused); !ok || r.CallID != "tu_b" || r.Reason != "interrupted" {
		t.Errorf("event %+v", events[1])
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

// TestAnswerIsOfThisTurn: what an earlier turn answered is no answer of a turn
// that failed.
func TestAnswerIsOfThisTurn(t *testing.T) {
	first, _ := run(t, t.Context(), options(answers(says("One.")), nil))
	o := options(&scriptModel{answer: func(int, Request, func(Delta)) (Response, error) { return Response{}, errors.New("down") }}, nil)
	o.History = first.History
	if out, _ := run(t, t.Context(), o); out.Reason != StopProviderFailed || out.Answer != "" {
		t.Errorf("reason %s, answer %q", out.Reason, out.Answer)
	}
}

// TestUsageIsCountedHere: a provider counts no rounds and calls for us.
func TestUsageIsCountedHere(t *testing.T) {
	answer := says("Done.")
	answer.Usage = limits.Usage{Rounds: 5, ToolCalls: 7, InputTokens: 3}
	out, _ := run(t, t.Context(), options(answers(answer), nil))
	if diff := cmp.Diff(limits.Usage{Rounds: 1, InputTokens: 3}, out.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

// contextModel is a scriptModel that keeps the contexts of its calls.
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
		model := &contextModel{scriptModel: scriptModel{answer: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
			for _, d := range []Delta{{ToolName: "shell"}, {Text: "a"}, {Text: "b"}} {
				time.Sleep(time.Second)
				onDelta(d)
			}
			return says("ab"), nil
		}}}
		_, events := run(t, t.Context(), options(model, nil))
		var texts []string
		for _, e := range events {
			switch e := e.(type) {
			case TextDelta:
				texts = append(texts, e.Text)
			case ModelCallCompleted:
				if e.FirstDelta != time.Second || e.Latency != 3*time.Second {
					t.Errorf("first delta after %v, the whole after %v", e.FirstDelta, e.Latency)
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

// TestDeltaIsNotRecorded: the call under way is cancelled for that reason.
func TestDeltaIsNotRecorded(t *testing.T) {
	full := errors.New("disk full")
	var model *contextModel
	model = &contextModel{scriptModel: scriptModel{answer: func(_ int, _ Request, onDelta func(Delta)) (Response, error) {
		onDelta(Delta{Text: "a"})
		cause := context.Cause(model.contexts[0])
		if !errors.Is(cause, full) {
			t.Errorf("the call goes on: %v", cause)
		}
		return Response{}, cause
	}}}
	o := options(model, nil)
	o.Emit = func(e Event) error {
		if _, ok := e.(TextDelta); ok {
			return full
		}
		return nil
	}
	if out, _ := run(t, t.Context(), o); out.Reason != StopTraceUnwritable {
		t.Errorf("outcome = %+v", out)
	}
}

// TestWallTimeIsReleased: the context of the wall time ends with the turn.
func TestWallTimeIsReleased(t *testing.T) {
	var called context.Context
	d := &fakeTools{names: []tools.Name{"shell"}, run: func(ctx context.Context, _ tools.Call) (string, error) {
		called = ctx
		return "ok", nil
	}}
	o := options(answers(calls("shell {}"), says("Done.")), d)
	o.Budget.WallTime = new(time.Hour)
	run(t, t.Context(), o)
	if called.Err() == nil {
		t.Error("the turn's context is not cancelled")
	}
}

// TestWarningsComeAtOnce: after the answer, or the calls, that used four fifths.
func TestWarningsComeAtOnce(t *testing.T) {
	o := options(answers(calls("shell {}", "shell {}", "shell {}", "shell {}"), costs(says("Done."), 9, nil)), &fakeTools{names: []tools.Name{"shell"}})
	o.Budget = limits.Budget{ToolCalls: new(int64(5)), Tokens: new(int64(10))}
	_, events := run(t, t.Context(), o)
	var got []string
	for _, e := range events {
		switch e := e.(type) {
		case ModelCallStarted:
			got = append(got, "asked")
		case BudgetWarning:
			got = append(got, string(e.Kind))
		}
	}
	if diff := cmp.Diff([]string{"asked", "tool_calls", "asked", "tokens"}, got); diff != "" {
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
		got := SystemPrompt(tt.options)
		if !strings.Contains(got, tt.has) || tt.lack != "" && strings.Contains(got, tt.lack) {
			t.Errorf("%s: want %q and not %q in:\n%s", name, tt.has, tt.lack, got)
		}
	}
}
