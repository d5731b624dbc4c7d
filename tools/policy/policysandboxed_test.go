package policy

import (
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// changedPreset returns a preset, changed if change is not nil.
func changedPreset(t *testing.T, name string, change func(*Policy)) Policy {
	t.Helper()
	p, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&p)
	}
	return p
}

// TestAllowsSandboxed: only tools in the sandbox count, and only a deny by any rule
// keeps them from running.
func TestAllowsSandboxed(t *testing.T) {
	read := tools.Definition{Name: "read_file", Class: tools.ClassRead, Runs: tools.PlaceHost}
	note := tools.Definition{Name: "memory_add", Class: tools.ClassWrite, Runs: tools.PlaceState}
	write := tools.Definition{Name: "write_file", Class: tools.ClassWrite, Runs: tools.PlaceSandbox}
	shell := tools.Definition{Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox}
	preset := func(name string, change func(*Policy)) Policy { return changedPreset(t, name, change) }
	all := []tools.Definition{read, note, write, shell}
	for name, tc := range map[string]struct {
		policy Policy
		defs   []tools.Definition
		want   bool
	}{
		"readonly":                   {preset("readonly", nil), all, false},
		"default":                    {preset("default", nil), all, true},
		"ci":                         {preset("ci", nil), all, true},
		"ci, nothing in the sandbox": {preset("ci", nil), []tools.Definition{read, note}, false},
		"no prompts":                 {preset("default", func(p *Policy) { p.NoPrompts = true }), all, false},
		"a tool of readonly":         {preset("readonly", func(p *Policy) { p.Tools = map[string]Mode{"shell": ModeAuto} }), all, false},
		"a deny of both classes": {preset("ci", func(p *Policy) {
			p.Sandboxed = map[tools.Class]Mode{tools.ClassWrite: ModeDeny, tools.ClassExecute: ModeDeny}
		}), all, false},
		"a deny of one class":         {preset("ci", func(p *Policy) { p.Sandboxed[tools.ClassExecute] = ModeDeny }), all, true},
		"an administrator's readonly": {preset("ci", func(p *Policy) { p.Tighten = []Policy{preset("readonly", nil)} }), all, false},
	} {
		if got := tc.policy.AllowsSandboxed(tc.defs, "/w"); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestDecideSandbox: a sandbox without a model is bound like tools that write or
// execute. Only the policy's own questions can be answered beforehand.
func TestDecideSandbox(t *testing.T) {
	rules := func(name string, change func(*Policy)) Policy { return changedPreset(t, name, change) }
	commands := func(mode Mode) func(*Policy) {
		return func(p *Policy) { p.Commands = map[string]Mode{"git push *": mode} }
	}
	for name, tc := range map[string]struct {
		policy        Policy
		want, enabled Mode
	}{
		"strict":               {rules("strict", nil), ModePrompt, ModeAuto},
		"readonly":             {rules("readonly", nil), ModeDeny, ModeDeny},
		"default":              {rules("default", nil), ModePrompt, ModeAuto},
		"sandboxed":            {rules("sandboxed", nil), ModeAuto, ModeAuto},
		"ci":                   {rules("ci", nil), ModeAuto, ModeAuto},
		"no prompts":           {rules("default", func(p *Policy) { p.NoPrompts = true }), ModeDeny, ModeDeny},
		"a denied shell":       {rules("ci", func(p *Policy) { p.Tools = map[string]Mode{"shell": ModeDeny} }), ModeDeny, ModeDeny},
		"denied writing":       {rules("ci", func(p *Policy) { p.Sandboxed[tools.ClassWrite] = ModeDeny }), ModeDeny, ModeDeny},
		"an allowed command":   {rules("default", commands(ModeAuto)), ModePrompt, ModeAuto},
		"a command asked for":  {rules("sandboxed", commands(ModePrompt)), ModePrompt, ModeAuto},
		"a denied command":     {rules("ci", commands(ModeDeny)), ModeDeny, ModeDeny},
		"relaxed writing":      {rules("default", func(p *Policy) { p.RelaxedWorkspaces = []string{"/w"} }), ModePrompt, ModeAuto},
		"required questions":   {rules("sandboxed", func(p *Policy) { p.Tighten = []Policy{rules("default", nil)} }), ModePrompt, ModePrompt},
		"questions everywhere": {rules("default", func(p *Policy) { p.Tighten = []Policy{rules("default", nil)} }), ModePrompt, ModePrompt},
		"required readonly":    {rules("ci", func(p *Policy) { p.Tighten = []Policy{rules("readonly", nil)} }), ModeDeny, ModeDeny},
		"harmless requirement": {rules("default", func(p *Policy) { p.Tighten = []Policy{rules("sandboxed", nil)} }), ModePrompt, ModeAuto},
	} {
		if got, enabled := tc.policy.DecideSandbox("/w", false).Mode, tc.policy.DecideSandbox("/w", true).Mode; got != tc.want || enabled != tc.enabled {
			t.Errorf("%s: %s, enabled %s, want %s and %s", name, got, enabled, tc.want, tc.enabled)
		}
	}
}
