package policy

import (
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// TestAllowsSandboxed: only what runs in the sandbox counts, and only a deny, of
// whichever rule, keeps it from running.
func TestAllowsSandboxed(t *testing.T) {
	read := tools.Definition{Name: "read_file", Class: tools.ClassRead, Runs: tools.PlaceHost}
	note := tools.Definition{Name: "memory_add", Class: tools.ClassWrite, Runs: tools.PlaceState}
	write := tools.Definition{Name: "write_file", Class: tools.ClassWrite, Runs: tools.PlaceSandbox}
	shell := tools.Definition{Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox}
	preset := func(name string, change func(*Policy)) Policy {
		p, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(&p)
		}
		return p
	}
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
