package policy

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

// A server's tool asks in every preset, whatever its class and place, until the
// policy names it or its server.
func TestServersAsk(t *testing.T) {
	local := classTool("srv/do_it", tools.ClassExecute, tools.PlaceSandbox)
	remote := classTool("srv/do_it", tools.ClassNetwork, tools.PlaceHost)
	harmless := classTool("srv/do_it", tools.ClassRead, tools.PlaceHost)
	want := map[string]Mode{"strict": ModePrompt, "readonly": ModeDeny, "default": ModePrompt, "sandboxed": ModePrompt, "ci": ModeDeny}
	for _, preset := range PresetNames() {
		p, err := Preset(preset)
		if err != nil {
			t.Fatal(err)
		}
		for _, def := range []tools.Definition{local, remote} {
			if got := p.Decide(def, "/ws"); got.Mode != want[preset] {
				t.Errorf("preset %s: class %s gets %s by %s", preset, def.Class, got.Mode, got.Rule)
			}
		}
		if got := p.Decide(harmless, "/ws").Mode; got == ModeAuto {
			t.Errorf("preset %s: a tool that is said to read is auto", preset)
		}
		if own := p.Decide(classTool("own", tools.ClassExecute, tools.PlaceSandbox), "/ws").Mode; preset == "sandboxed" && own != ModeAuto {
			t.Errorf("the control, a tool of our own, gets %s", own)
		}
		for _, key := range []string{"srv/do_it", "srv__do_it", "srv/*", "srv__*"} {
			p.Tools = map[string]Mode{key: ModeAuto}
			if got := p.Decide(local, "/ws").Mode; got != ModeAuto && preset != "readonly" {
				t.Errorf("preset %s with %s: %s", preset, key, got)
			}
		}
		p.Tools = map[string]Mode{"srv/other": ModeAuto, "srv2/*": ModeAuto, "do_it": ModeAuto, "srv": ModeAuto, "*": ModeAuto}
		p.Classes[tools.ClassExecute], p.Sandboxed = ModeAuto, map[tools.Class]Mode{tools.ClassExecute: ModeAuto}
		p.RelaxedWorkspaces, p.RelaxedModes = []string{"/"}, map[tools.Class]Mode{tools.ClassExecute: ModeAuto}
		if got := p.Decide(local, "/ws").Mode; got == ModeAuto {
			t.Errorf("preset %s: rules about others make it auto", preset)
		}
	}
}

func TestServersMode(t *testing.T) {
	def := classTool("srv/do_it", tools.ClassNetwork, tools.PlaceHost)
	network := func(m Mode) map[tools.Class]Mode { return map[tools.Class]Mode{tools.ClassNetwork: m} }
	named := map[string]Mode{"srv/*": ModeAuto}
	for name, tt := range map[string]struct {
		policy Policy
		want   Verdict
	}{
		"a class does not make it milder":   {Policy{Classes: network(ModeAuto)}, Verdict{Mode: ModePrompt, Rule: "tools of servers"}},
		"a class makes it stricter":         {Policy{Classes: network(ModePrompt), Servers: ModeAuto}, Verdict{Mode: ModePrompt, Rule: "class network"}},
		"an own mode":                       {Policy{Classes: network(ModeAuto), Servers: ModePromptOnce}, Verdict{Mode: ModePromptOnce, Rule: "tools of servers"}},
		"deny of the class":                 {Policy{Classes: network(ModeDeny), Tools: named}, Verdict{Mode: ModeDeny, Rule: "class network"}},
		"a layer that is silent about them": {Policy{Tools: named, Tighten: []Policy{{Servers: ModeAuto, Classes: network(ModeAuto)}}}, Verdict{Mode: ModeAuto, Rule: "server srv/*"}},
		"a layer that is not":               {Policy{Tools: named, Tighten: []Policy{{Name: "requirements", Classes: network(ModeAuto)}}}, Verdict{Mode: ModePrompt, Rule: "requirements: tools of servers"}},
		"nobody is asked":                   {Policy{NoPrompts: true}, Verdict{Mode: ModeDeny, Rule: "no prompts, tools of servers"}},
	} {
		if diff := cmp.Diff(tt.want, tt.policy.Decide(def, "")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if err := (Policy{Servers: "yes"}).Validate(); err == nil {
		t.Error("an unknown mode is valid")
	}
}

// A tool that does a server's tool's work is bound by the rules about the server.
func TestActsForServer(t *testing.T) {
	def := classTool("read_resource", tools.ClassNone, tools.PlaceHost)
	def.ActsAs = func(json.RawMessage) []tools.Name { return []tools.Name{"srv/resource"} }
	modes := map[tools.Class]Mode{tools.ClassNone: ModeAuto}
	for name, tt := range map[string]struct {
		tools map[string]Mode
		want  Mode
	}{
		"not named":             {nil, ModePrompt},
		"the server is denied":  {map[string]Mode{"srv__*": ModeDeny, "srv/resource": ModeAuto}, ModeDeny},
		"the server is allowed": {map[string]Mode{"srv/*": ModeAuto}, ModeAuto},
		"the name is exact":     {map[string]Mode{"srv/*": ModeAuto, "srv__resource": ModePrompt}, ModePrompt},
	} {
		if got := (Policy{Classes: modes, Tools: tt.tools}).DecideCall(DangerMatcher{}, def, "", json.RawMessage(`{}`)).Mode; got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestAllowsServer(t *testing.T) {
	ci, err := Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		tools map[string]Mode
		want  bool
	}{
		"not named":           {nil, false},
		"another":             {map[string]Mode{"other/*": ModeAuto, "srv2/x": ModeAuto}, false},
		"one tool":            {map[string]Mode{"srv/x": ModeAuto}, true},
		"one, by its alias":   {map[string]Mode{"srv__x": ModeAuto}, true},
		"all":                 {map[string]Mode{"srv__*": ModeAuto}, true},
		"all but one":         {map[string]Mode{"srv/*": ModeAuto, "srv/x": ModeDeny}, true},
		"one of the denied":   {map[string]Mode{"srv/*": ModeDeny, "srv/x": ModeAuto}, false},
		"what would be asked": {map[string]Mode{"srv/*": ModePrompt}, false},
	} {
		ci.Tools = tt.tools
		if got := ci.AllowsServer("srv", tools.ClassExecute, tools.PlaceSandbox, "/ws"); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !(Policy{}).AllowsServer("srv", tools.ClassNetwork, tools.PlaceHost, "") {
		t.Error("a server whose tools are asked about is not allowed")
	}
}

func TestUnmatchedOfServers(t *testing.T) {
	p := Policy{Tools: map[string]Mode{"a/x": ModeDeny, "a__*": ModeDeny, "b/x": ModeDeny, "shel": ModeDeny}}
	if diff := cmp.Diff([]string{"b/x", "shel"}, p.Unmatched(nil, "a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
