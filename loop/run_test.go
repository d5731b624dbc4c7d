package loop

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

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
