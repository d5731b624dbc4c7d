package tools

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
)

// actingTool is a tool that does the work of the tools that its text names,
// and of shell where it runs commands.
func actingTool(name string, class Class, always ...Name) Definition {
	def := testDefinition(name, class)
	def.ActsAs = func(input json.RawMessage) []Name {
		names := slices.Clone(always)
		var in struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(input, &in) == nil && in.Text != "" {
			names = append(names, Name(in.Text))
		}
		return names
	}
	return def
}

// TestRestrictionsBindSiblings: what is restricted for one tool is restricted for
// the tools that do its work. The control is the decision about the tool's own
// rules alone, which is milder.
func TestRestrictionsBindSiblings(t *testing.T) {
	modes := []Mode{ModeAuto, ModePromptOnce, ModePrompt, ModeDeny} // mildest first
	check := actingTool("check", ClassExecute, NameShell)
	parts := actingTool("parts", ClassWrite)
	auto := map[Class]Mode{ClassWrite: ModeAuto, ClassExecute: ModeAuto}
	asking := map[Class]Mode{ClassWrite: ModePrompt, ClassExecute: ModePrompt}
	for name, tc := range map[string]struct {
		policy Policy
		def    Definition
		input  string
		want   Verdict
	}{
		"prompt":             {Policy{Classes: auto, Tools: map[string]Mode{"shell": ModePrompt}}, check, ``, Verdict{ModePrompt, "tool shell, whose work this call does", "shell"}},
		"prompt_once":        {Policy{Classes: auto, Tools: map[string]Mode{"shell": ModePromptOnce}}, check, ``, Verdict{ModePromptOnce, "tool shell, whose work this call does", "shell"}},
		"deny":               {Policy{Classes: auto, Tools: map[string]Mode{"shell": ModeDeny}}, check, ``, Verdict{ModeDeny, "tool shell, whose work this call does", "shell"}},
		"the part's":         {Policy{Classes: auto, Tools: map[string]Mode{"delete_file": ModeDeny}}, parts, `{"text":"delete_file"}`, Verdict{ModeDeny, "tool delete_file, whose work this call does", "delete_file"}},
		"despite an auto":    {Policy{Classes: asking, Tools: map[string]Mode{"parts": ModeAuto, "delete_file": ModePrompt}}, parts, `{"text":"delete_file"}`, Verdict{ModePrompt, "tool delete_file, whose work this call does", "delete_file"}},
		"requirements":       {Policy{Classes: auto, Tighten: []Policy{{Name: "requirements", Classes: auto, Tools: map[string]Mode{"shell": ModePrompt}}}}, check, ``, Verdict{ModePrompt, "requirements: tool shell, whose work this call does", "shell"}},
		"where nobody asks":  {Policy{Classes: auto, NoPrompts: true, Tools: map[string]Mode{"shell": ModePrompt}}, check, ``, Verdict{ModeDeny, "no prompts, tool shell, whose work this call does", "shell"}},
		"another part":       {Policy{Classes: auto, Tools: map[string]Mode{"delete_file": ModeDeny}}, parts, `{"text":"write_file"}`, Verdict{ModeAuto, "class write", ""}},
		"auto loosens none":  {Policy{Classes: asking, Tools: map[string]Mode{"shell": ModeAuto, "delete_file": ModeAuto}}, check, ``, Verdict{ModePrompt, "class execute", ""}},
		"one as strict":      {Policy{Classes: asking, Tools: map[string]Mode{"shell": ModePrompt}}, check, ``, Verdict{ModePrompt, "class execute", ""}},
		"a stricter own":     {Policy{Classes: auto, Tools: map[string]Mode{"shell": ModePrompt, "check": ModeDeny}}, check, ``, Verdict{ModeDeny, "tool check", ""}},
		"nothing restricted": {Policy{Classes: auto}, check, ``, Verdict{ModeAuto, "class execute", ""}},
	} {
		def := tc.def
		def.Runs = PlaceSandbox
		if got := tc.policy.DecideCall(def, "", json.RawMessage(tc.input)); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		def.ActsAs = nil
		if control := tc.policy.DecideCall(def, "", json.RawMessage(tc.input)); tc.want.As != "" && slices.Index(modes, control.Mode) >= slices.Index(modes, tc.want.Mode) {
			t.Errorf("%s: the tool's own rules give %+v too: the case shows nothing", name, control)
		}
	}
	d := newDispatcher(t, &recorder{}, Options{Policy: Policy{Classes: auto, Tools: map[string]Mode{"delete_file": ModeDeny}}}, fakeTool{def: parts})
	wantText(t, roundOK(t, d, call("a", "parts", `{"text":"delete_file"}`))[0], true,
		`The policy refuses what this call of "parts" does, by its rule for "delete_file"; don't try that again in this session.`)
	p := Policy{Tools: map[string]Mode{"shell": ModeDeny, "shel": ModeDeny}}
	if got := p.Unmatched([]Definition{check}); !slices.Equal(got, []string{"shel"}) {
		t.Errorf("rules that bind no tool are %q, want the misspelt one", got)
	}
}

// TestSessionAnswerIsAboutThePartThatAsked: who allows a call for the session is
// asked again where the rule of another tool asks. The control is a second call
// of the first kind, which is not asked about.
func TestSessionAnswerIsAboutThePartThatAsked(t *testing.T) {
	var asked []Confirmation
	d := newDispatcher(t, &recorder{}, Options{
		Workspace: "/ws", Grants: NewGrants(t.TempDir() + "/approvals.json"),
		Policy: Policy{Classes: map[Class]Mode{ClassWrite: ModeAuto}, Tools: map[string]Mode{"write_file": ModePrompt, "delete_file": ModePrompt}},
		Broker: brokerFunc(func(_ context.Context, c Confirmation) (Answer, error) {
			asked = append(asked, c)
			return Answer{DecisionAllow, ScopeSession}, nil
		}),
	}, fakeTool{def: actingTool("parts", ClassWrite)})
	for i, part := range []string{"write_file", "write_file", "delete_file", "patch_file", "delete_file"} {
		roundOK(t, d, call("c"+string(rune('0'+i)), "parts", `{"text":"`+part+`"}`))
	}
	if len(asked) != 2 || string(asked[1].Exact) != `{"text":"delete_file"}` {
		t.Fatalf("%d questions were asked, want one about each restricted part: %+v", len(asked), asked)
	}
	for _, c := range asked {
		if slices.Contains(c.Scopes, ScopeAlways) {
			t.Errorf("a lasting answer is offered to %s, which would cover its other parts", c.Exact)
		}
	}
}
