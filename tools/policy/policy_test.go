package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/tools"
)

func classTool(name string, class tools.Class, place tools.Place) tools.Definition {
	return tools.Definition{Name: tools.Name(name), Class: class, Runs: place}
}

func textCommands(raw json.RawMessage) []string {
	var in struct{ Text string }
	_ = json.Unmarshal(raw, &in)
	return []string{in.Text}
}

func TestPresets(t *testing.T) {
	tools := []tools.Definition{
		classTool("none", tools.ClassNone, tools.PlaceHost), classTool("read", tools.ClassRead, tools.PlaceHost),
		classTool("write", tools.ClassWrite, tools.PlaceSandbox), classTool("execute", tools.ClassExecute, tools.PlaceSandbox),
		classTool("network", tools.ClassNetwork, tools.PlaceHost), classTool("host_write", tools.ClassWrite, tools.PlaceHost),
		classTool("host_execute", tools.ClassExecute, tools.PlaceHost),
	}
	want := map[string][]Mode{
		"strict":    {"prompt", "prompt", "prompt", "prompt", "prompt", "prompt", "prompt"},
		"readonly":  {"auto", "auto", "deny", "deny", "deny", "deny", "deny"},
		"default":   {"auto", "auto", "prompt", "prompt", "prompt", "prompt", "prompt"},
		"sandboxed": {"auto", "auto", "auto", "auto", "prompt", "prompt", "prompt"},
		"ci":        {"auto", "auto", "auto", "auto", "deny", "deny", "deny"},
	}
	for _, name := range PresetNames() {
		p, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		var got []Mode
		for _, def := range tools {
			v := p.Decide(def, "/ws")
			if got = append(got, v.Mode); strings.Contains(v.Rule, "(no rule)") {
				t.Errorf("preset %s has no rule about %s", name, def.Class)
			}
		}
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("preset %s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := Preset("yolo"); err == nil {
		t.Error("a preset that isn't there is found")
	}
}

func TestPolicyLookup(t *testing.T) {
	modes := map[tools.Class]Mode{tools.ClassRead: ModeAuto, tools.ClassWrite: ModePrompt, tools.ClassExecute: ModePrompt, tools.ClassNetwork: ModePrompt}
	shell, write := classTool("shell", tools.ClassExecute, tools.PlaceSandbox), classTool("write_file", tools.ClassWrite, tools.PlaceSandbox)
	mcp, note := classTool("srv/do_it", tools.ClassNetwork, tools.PlaceHost), classTool("memory_add", tools.ClassWrite, tools.PlaceState)
	tests := []struct {
		name      string
		policy    Policy
		def       tools.Definition
		workspace string
		want      Verdict
	}{
		{"zero policy asks", Policy{}, classTool("x", tools.ClassNone, tools.PlaceHost), "", Verdict{Mode: ModePrompt, Rule: "class none (no rule)"}},
		{"class", Policy{Classes: modes}, shell, "", Verdict{Mode: ModePrompt, Rule: "class execute"}},
		{"exact tool", Policy{Classes: modes, Tools: map[string]Mode{"shell": ModeAuto}}, shell, "", Verdict{Mode: ModeAuto, Rule: "tool shell"}},
		{"canonical name of a server's", Policy{Classes: modes, Tools: map[string]Mode{"srv/do_it": ModeAuto, "srv__do_it": ModePrompt, "srv/*": ModePrompt}}, mcp, "", Verdict{Mode: ModeAuto, Rule: "tool srv/do_it"}},
		{"wire form", Policy{Classes: modes, Tools: map[string]Mode{"srv__do_it": ModePromptOnce, "srv/*": ModePrompt}}, mcp, "", Verdict{Mode: ModePromptOnce, Rule: "tool srv__do_it"}},
		{"server", Policy{Classes: modes, Tools: map[string]Mode{"srv/*": ModeAuto, "other/*": ModeDeny}}, mcp, "", Verdict{Mode: ModeAuto, Rule: "server srv/*"}},
		{"a server's rule is not for our own tools", Policy{Classes: modes, Tools: map[string]Mode{"shell/*": ModeAuto}}, shell, "", Verdict{Mode: ModePrompt, Rule: "class execute"}},
		{"relaxed workspace: write", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}}, write, "/src/app", Verdict{Mode: ModeAuto, Rule: "relaxed workspace"}},
		{"relaxed workspace: execute still prompts", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}}, shell, "/src", Verdict{Mode: ModePrompt, Rule: "class execute"}},
		{"relaxed workspace: override", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassExecute: ModeAuto, tools.ClassWrite: ModePromptOnce}}, shell, "/src", Verdict{Mode: ModeAuto, Rule: "relaxed workspace, class execute"}},
		{"relaxed workspace: write overridden", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassWrite: ModePromptOnce}}, write, "/src", Verdict{Mode: ModePromptOnce, Rule: "relaxed workspace, class write"}},
		{"relaxed workspace: state is not opened", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}}, note, "/src", Verdict{Mode: ModePrompt, Rule: "class write"}},
		{"relaxed workspace: nor by an override", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassWrite: ModeAuto}}, note, "/src", Verdict{Mode: ModePrompt, Rule: "class write"}},
		{"relaxed workspace: a stricter override is for state too", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassWrite: ModeDeny}}, note, "/src", Verdict{Mode: ModeDeny, Rule: "relaxed workspace, class write"}},
		{"relaxed workspace: as strict an override is the class's", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassWrite: ModePrompt}}, note, "/src", Verdict{Mode: ModePrompt, Rule: "class write"}},
		{"relaxed workspace: a question about state that is auto", Policy{Classes: map[tools.Class]Mode{tools.ClassWrite: ModeAuto}, RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassWrite: ModePrompt}}, note, "/src", Verdict{Mode: ModePrompt, Rule: "relaxed workspace, class write"}},
		{"relaxed workspace: state without a rule is not opened", Policy{RelaxedWorkspaces: []string{"/src"}, RelaxedModes: map[tools.Class]Mode{tools.ClassWrite: ModeAuto}}, note, "/src", Verdict{Mode: ModePrompt, Rule: "class write (no rule)"}},
		{"a class that is auto opens state", Policy{Classes: map[tools.Class]Mode{tools.ClassWrite: ModeAuto}, Sandboxed: map[tools.Class]Mode{tools.ClassWrite: ModePrompt}}, note, "/other", Verdict{Mode: ModeAuto, Rule: "class write"}},
		{"relaxed workspace: its tool opens state", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, Tools: map[string]Mode{"memory_add": ModeAuto}}, note, "/src", Verdict{Mode: ModeAuto, Rule: "tool memory_add"}},
		{"a sibling with the same beginning is not relaxed", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}}, write, "/src-evil", Verdict{Mode: ModePrompt, Rule: "class write"}},
		{"the folder above is not relaxed", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src/app"}}, write, "/src", Verdict{Mode: ModePrompt, Rule: "class write"}},
		{"no workspace is not relaxed", Policy{Classes: modes, RelaxedWorkspaces: []string{"/"}}, write, "", Verdict{Mode: ModePrompt, Rule: "class write"}},
		{"tool before relaxed workspace", Policy{Classes: modes, RelaxedWorkspaces: []string{"/src"}, Tools: map[string]Mode{"write_file": ModePrompt}}, write, "/src", Verdict{Mode: ModePrompt, Rule: "tool write_file"}},
		{"deny of the class beats auto of the tool", Policy{Classes: map[tools.Class]Mode{tools.ClassExecute: ModeDeny}, Tools: map[string]Mode{"shell": ModeAuto}}, shell, "", Verdict{Mode: ModeDeny, Rule: "class execute"}},
		{"the most exact of two denies is named", Policy{Classes: map[tools.Class]Mode{tools.ClassExecute: ModeDeny}, Tools: map[string]Mode{"shell": ModeDeny}}, shell, "", Verdict{Mode: ModeDeny, Rule: "tool shell"}},
		{"deny of the server beats auto of the tool", Policy{Classes: modes, Tools: map[string]Mode{"srv/do_it": ModeAuto, "srv/*": ModeDeny}}, mcp, "", Verdict{Mode: ModeDeny, Rule: "server srv/*"}},
		{"deny of the wire form beats auto of the canonical", Policy{Classes: modes, Tools: map[string]Mode{"srv/do_it": ModeAuto, "srv__do_it": ModeDeny}}, mcp, "", Verdict{Mode: ModeDeny, Rule: "tool srv__do_it"}},
		{"deny of the class beats trust", Policy{Classes: map[tools.Class]Mode{tools.ClassWrite: ModeDeny}, RelaxedWorkspaces: []string{"/src"}}, write, "/src", Verdict{Mode: ModeDeny, Rule: "class write"}},
		{"no prompts", Policy{Classes: modes, NoPrompts: true, Tools: map[string]Mode{"shell": ModePromptOnce}}, shell, "", Verdict{Mode: ModeDeny, Rule: "no prompts, tool shell"}},
		{"no prompts holds for what a layer asks", Policy{Classes: map[tools.Class]Mode{tools.ClassExecute: ModeAuto}, NoPrompts: true, Tighten: []Policy{{Name: "project", Classes: modes}}}, shell, "", Verdict{Mode: ModeDeny, Rule: "no prompts, project: class execute"}},
		{"a name offered as the same", Policy{Classes: modes, Tools: map[string]Mode{"srv/do.it": ModeDeny}}, mcp, "", Verdict{Mode: ModeDeny, Rule: "tool srv/do.it"}},
		{"server in the wire form", Policy{Classes: modes, Tools: map[string]Mode{"srv__*": ModeDeny}}, mcp, "", Verdict{Mode: ModeDeny, Rule: "server srv__*"}},
		{"a server whose name begins alike", Policy{Classes: modes, Tools: map[string]Mode{"sr/*": ModeDeny, "srv_/*": ModeDeny, "s*": ModeDeny}}, mcp, "", Verdict{Mode: ModePrompt, Rule: "tools of servers"}},
		{"no prompts leaves auto", Policy{Classes: modes, NoPrompts: true}, classTool("r", tools.ClassRead, tools.PlaceHost), "", Verdict{Mode: ModeAuto, Rule: "class read"}},
		{"tightened", Policy{Classes: modes, Tools: map[string]Mode{"shell": ModeAuto}, Tighten: []Policy{{Classes: modes}}}, shell, "", Verdict{Mode: ModePrompt, Rule: "class execute"}},
		{"a layer that is as strict is not named", Policy{Classes: modes, Tighten: []Policy{{Name: "project", Classes: modes}}}, shell, "", Verdict{Mode: ModePrompt, Rule: "class execute"}},
		{"never loosened", Policy{Classes: modes, Tighten: []Policy{{Classes: map[tools.Class]Mode{tools.ClassExecute: ModeAuto}}}}, shell, "", Verdict{Mode: ModePrompt, Rule: "class execute"}},
		{"unknown mode is the strictest", Policy{Classes: modes, Tighten: []Policy{{Classes: map[tools.Class]Mode{tools.ClassExecute: "never"}}}}, shell, "", Verdict{Mode: "never", Rule: "class execute"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.policy.Decide(tt.def, tt.workspace)); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnmatchedRulesOfAllLayers(t *testing.T) {
	defs := []tools.Definition{classTool("shell", tools.ClassExecute, tools.PlaceSandbox), classTool("srv/do_it", tools.ClassNetwork, tools.PlaceHost)}
	p := Policy{
		Tools:   map[string]Mode{"shell": ModeDeny, "srv/*": ModeDeny, "srv__*": ModeDeny, "srv__do_it": ModeDeny, "srv/do_it": ModeDeny, "shel": ModeDeny, "Shell": ModeDeny, "srv": ModeDeny},
		Tighten: []Policy{{Tools: map[string]Mode{"other/*": ModeDeny, "shel": ModeDeny, "shell": ModeAuto}}},
	}
	if diff := cmp.Diff([]string{"Shell", "other/*", "shel", "srv"}, p.Unmatched(defs)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNotBinding: restricting a tool that changes files binds nothing if commands
// may do the same under a milder rule.
func TestNotBinding(t *testing.T) {
	shell := tools.Definition{Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Commands: textCommands}
	verify, opaque, host := shell, shell, shell
	verify.Name, opaque.Name, opaque.Commands, host.Name, host.Runs = "verify", "opaque", nil, "host", tools.PlaceHost
	reads := classTool("read_file", tools.ClassRead, tools.PlaceSandbox)
	reads.Commands = textCommands
	defs := []tools.Definition{
		reads, host, opaque, shell, verify, classTool("memory_add", tools.ClassWrite, tools.PlaceState),
		classTool("write_file", tools.ClassWrite, tools.PlaceSandbox), classTool("patch_file", tools.ClassWrite, tools.PlaceSandbox),
	}
	policy := func(write, execute Mode, all map[string]Mode) Policy {
		return Policy{Classes: map[tools.Class]Mode{tools.ClassRead: ModeAuto, tools.ClassWrite: write, tools.ClassExecute: execute}, Tools: all}
	}
	noPrompts := policy(ModeDeny, ModePrompt, nil)
	noPrompts.NoPrompts = true
	layered := policy(ModePrompt, ModePrompt, nil)
	layered.Tighten = []Policy{policy(ModeAuto, ModeAuto, map[string]Mode{"patch_file": ModePrompt})}
	both := []tools.Name{"write_file", "patch_file"}
	for name, tt := range map[string]struct {
		policy Policy
		want   []tools.Name
	}{
		"alike":                        {policy(ModePrompt, ModePrompt, nil), nil},
		"commands are stricter":        {policy(ModeAuto, ModePrompt, nil), nil},
		"commands are milder":          {policy(ModePrompt, ModePromptOnce, nil), both},
		"commands are denied":          {policy(ModeDeny, ModeDeny, map[string]Mode{"write_file": ModeDeny}), nil},
		"one tool runs commands":       {policy(ModePrompt, ModePromptOnce, map[string]Mode{"verify": ModeDeny}), both},
		"the mildest counts":           {policy(ModePrompt, ModePrompt, map[string]Mode{"shell": ModeAuto}), both},
		"no tool for commands, reads":  {policy(ModePrompt, ModePrompt, map[string]Mode{"opaque": ModeAuto, "host": ModeAuto}), nil},
		"by name, as strict":           {policy(ModePrompt, ModePrompt, map[string]Mode{"patch_file": ModePrompt}), []tools.Name{"patch_file"}},
		"by name, auto restricts none": {policy(ModeAuto, ModeAuto, map[string]Mode{"patch_file": ModeAuto}), nil},
		"by name, in a layer":          {layered, []tools.Name{"patch_file"}},
		"where nobody can be asked":    {noPrompts, both},
	} {
		if diff := cmp.Diff(tt.want, tt.policy.NotBinding(defs, "")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestLayersOnlyTighten: one more layer makes no tool's mode milder, and a deny in
// any layer holds.
func TestLayersOnlyTighten(t *testing.T) {
	modes := []Mode{ModeAuto, ModePromptOnce, ModePrompt, ModeDeny}
	classes := []tools.Class{tools.ClassNone, tools.ClassRead, tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork}
	keys := []string{"shell", "srv/x", "srv__x", "srv/*", "srv__*", "other"}
	draw := func(rt *rapid.T, label string) Policy {
		classModes := rapid.MapOf(rapid.SampledFrom(classes), rapid.SampledFrom(modes))
		return Policy{
			Classes: classModes.Draw(rt, label+" classes"), Sandboxed: classModes.Draw(rt, label+" sandboxed"), RelaxedModes: classModes.Draw(rt, label+" trusted"),
			Tools:             rapid.MapOf(rapid.SampledFrom(keys), rapid.SampledFrom(modes)).Draw(rt, label+" tools"),
			RelaxedWorkspaces: rapid.SampledFrom([][]string{nil, {"/ws"}, {"/elsewhere"}}).Draw(rt, label+" folders"),
			NoPrompts:         rapid.Bool().Draw(rt, label+" no prompts"),
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := draw(rt, "base")
		def := tools.Definition{
			Name: tools.Name(rapid.SampledFrom([]string{"shell", "srv/x", "unnamed"}).Draw(rt, "tool")), Class: rapid.SampledFrom(classes).Draw(rt, "class"),
			Runs: rapid.SampledFrom([]tools.Place{tools.PlaceHost, tools.PlaceSandbox, tools.PlaceState}).Draw(rt, "place"),
		}
		denied := p.Tools[string(def.Name)] == ModeDeny || p.Classes[def.Class] == ModeDeny
		last := p.Decide(def, "/ws").Mode
		for i := range rapid.IntRange(0, 4).Draw(rt, "layers") {
			layer := draw(rt, fmt.Sprintf("layer %d", i))
			if nested := rapid.Bool().Draw(rt, "nested"); nested && len(p.Tighten) > 0 {
				inner := p.Tighten[0]
				inner.Tighten = append(inner.Tighten, layer)
				p.Tighten[0] = inner
			} else {
				p.Tighten = append(p.Tighten, layer)
			}
			denied = denied || layer.Tools[string(def.Name)] == ModeDeny || layer.Classes[def.Class] == ModeDeny
			now := p.Decide(def, "/ws").Mode
			if now.rank() < last.rank() {
				rt.Fatalf("%s becomes %s by a layer", last, now)
			}
			last = now
		}
		if denied && last != ModeDeny {
			rt.Fatalf("denied, and %s", last)
		}
		if p.NoPrompts && (last == ModePrompt || last == ModePromptOnce) {
			rt.Fatalf("asks nobody, and %s", last)
		}
	})
}
