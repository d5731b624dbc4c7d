package dispatch

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// actingTool does the work of the tools that its text names, and of shell if it
// runs commands.
func actingTool(name string, class tools.Class, always ...tools.Name) tools.Definition {
	def := testDefinition(name, class)
	def.ActsAs = func(input json.RawMessage) []tools.Name {
		names := slices.Clone(always)
		var in struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(input, &in) == nil && in.Text != "" {
			names = append(names, tools.Name(in.Text))
		}
		return names
	}
	return def
}

// TestRestrictionsBindSiblings tests that a tool's restrictions bind the tools that
// do its work. The control is the verdict of the tool's own rules alone, which is
// milder.
func TestRestrictionsBindSiblings(t *testing.T) {
	modes := []policy.Mode{policy.ModeAuto, policy.ModePromptOnce, policy.ModePrompt, policy.ModeDeny} // mildest first
	check := actingTool("check", tools.ClassExecute, tools.NameShell)
	parts := actingTool("parts", tools.ClassWrite)
	auto := map[tools.Class]policy.Mode{tools.ClassWrite: policy.ModeAuto, tools.ClassExecute: policy.ModeAuto}
	asking := map[tools.Class]policy.Mode{tools.ClassWrite: policy.ModePrompt, tools.ClassExecute: policy.ModePrompt}
	for name, tc := range map[string]struct {
		policy policy.Policy
		def    tools.Definition
		input  string
		want   policy.Verdict
	}{
		"prompt":             {policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"shell": policy.ModePrompt}}, check, ``, policy.Verdict{Mode: policy.ModePrompt, Rule: "tool shell, whose work this call does", As: "shell"}},
		"prompt_once":        {policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"shell": policy.ModePromptOnce}}, check, ``, policy.Verdict{Mode: policy.ModePromptOnce, Rule: "tool shell, whose work this call does", As: "shell"}},
		"deny":               {policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"shell": policy.ModeDeny}}, check, ``, policy.Verdict{Mode: policy.ModeDeny, Rule: "tool shell, whose work this call does", As: "shell"}},
		"the part's":         {policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"delete_file": policy.ModeDeny}}, parts, `{"text":"delete_file"}`, policy.Verdict{Mode: policy.ModeDeny, Rule: "tool delete_file, whose work this call does", As: "delete_file"}},
		"despite an auto":    {policy.Policy{Classes: asking, Tools: map[string]policy.Mode{"parts": policy.ModeAuto, "delete_file": policy.ModePrompt}}, parts, `{"text":"delete_file"}`, policy.Verdict{Mode: policy.ModePrompt, Rule: "tool delete_file, whose work this call does", As: "delete_file"}},
		"requirements":       {policy.Policy{Classes: auto, Tighten: []policy.Policy{{Name: "requirements", Classes: auto, Tools: map[string]policy.Mode{"shell": policy.ModePrompt}}}}, check, ``, policy.Verdict{Mode: policy.ModePrompt, Rule: "requirements: tool shell, whose work this call does", As: "shell"}},
		"where nobody asks":  {policy.Policy{Classes: auto, NoPrompts: true, Tools: map[string]policy.Mode{"shell": policy.ModePrompt}}, check, ``, policy.Verdict{Mode: policy.ModeDeny, Rule: "no prompts, tool shell, whose work this call does", As: "shell"}},
		"another part":       {policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"delete_file": policy.ModeDeny}}, parts, `{"text":"write_file"}`, policy.Verdict{Mode: policy.ModeAuto, Rule: "class write", As: ""}},
		"auto loosens none":  {policy.Policy{Classes: asking, Tools: map[string]policy.Mode{"shell": policy.ModeAuto, "delete_file": policy.ModeAuto}}, check, ``, policy.Verdict{Mode: policy.ModePrompt, Rule: "class execute", As: ""}},
		"one as strict":      {policy.Policy{Classes: asking, Tools: map[string]policy.Mode{"shell": policy.ModePrompt}}, check, ``, policy.Verdict{Mode: policy.ModePrompt, Rule: "class execute", As: ""}},
		"a stricter own":     {policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"shell": policy.ModePrompt, "check": policy.ModeDeny}}, check, ``, policy.Verdict{Mode: policy.ModeDeny, Rule: "tool check", As: ""}},
		"nothing restricted": {policy.Policy{Classes: auto}, check, ``, policy.Verdict{Mode: policy.ModeAuto, Rule: "class execute", As: ""}},
	} {
		def := tc.def
		def.Runs = tools.PlaceSandbox
		if got := tc.policy.DecideCall(policy.DangerMatcher{}, def, "", json.RawMessage(tc.input)); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		def.ActsAs = nil
		if control := tc.policy.DecideCall(policy.DangerMatcher{}, def, "", json.RawMessage(tc.input)); tc.want.As != "" && slices.Index(modes, control.Mode) >= slices.Index(modes, tc.want.Mode) {
			t.Errorf("%s: the tool's own rules give %+v too: the case shows nothing", name, control)
		}
	}
	d := newDispatcher(t, &recorder{}, Options{Policy: policy.Policy{Classes: auto, Tools: map[string]policy.Mode{"delete_file": policy.ModeDeny}}}, fakeTool{def: parts})
	wantText(t, roundOK(t, d, call("a", "parts", `{"text":"delete_file"}`))[0], true,
		`The policy refuses what this call of "parts" does, by its rule for "delete_file"; don't try that again in this session.`)
	p := policy.Policy{Tools: map[string]policy.Mode{"shell": policy.ModeDeny, "shel": policy.ModeDeny}}
	if got := p.Unmatched([]tools.Definition{check}); !slices.Equal(got, []string{"shel"}) {
		t.Errorf("rules that bind no tool are %q, want the misspelt one", got)
	}
}

// TestSessionAnswerIsAboutThePartThatAsked tests that an answer for the session
// does not cover a call that another tool's rule asks about. The control is a
// second call of the first kind.
func TestSessionAnswerIsAboutThePartThatAsked(t *testing.T) {
	var asked []approval.Confirmation
	d := newDispatcher(t, &recorder{}, Options{
		Workspace: "/ws", Grants: approval.NewGrants(t.TempDir() + "/approvals.json"),
		Policy: policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassWrite: policy.ModeAuto}, Tools: map[string]policy.Mode{"write_file": policy.ModePrompt, "delete_file": policy.ModePrompt}},
		Broker: brokerFunc(func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			asked = append(asked, c)
			return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, nil
		}),
	}, fakeTool{def: actingTool("parts", tools.ClassWrite)})
	for i, part := range []string{"write_file", "write_file", "delete_file", "patch_file", "delete_file"} {
		roundOK(t, d, call("c"+string(rune('0'+i)), "parts", `{"text":"`+part+`"}`))
	}
	if len(asked) != 2 || string(asked[1].Exact) != `{"text":"delete_file"}` {
		t.Fatalf("%d questions were asked, want one about each restricted part: %+v", len(asked), asked)
	}
	for _, c := range asked {
		if slices.Contains(c.Scopes, approval.ScopeAlways) {
			t.Errorf("a lasting answer is offered to %s, which would cover its other parts", c.Exact)
		}
	}
}
