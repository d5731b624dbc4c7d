package tools

import "testing"

// TestAllowsSandboxed: only what runs in the sandbox counts, and only a deny, of
// whichever rule, keeps it from running.
func TestAllowsSandboxed(t *testing.T) {
	read := Definition{Name: "read_file", Class: ClassRead, Runs: PlaceHost}
	note := Definition{Name: "memory_add", Class: ClassWrite, Runs: PlaceState}
	write := Definition{Name: "write_file", Class: ClassWrite, Runs: PlaceSandbox}
	shell := Definition{Name: "shell", Class: ClassExecute, Runs: PlaceSandbox}
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
	all := []Definition{read, note, write, shell}
	for name, tc := range map[string]struct {
		policy Policy
		defs   []Definition
		want   bool
	}{
		"readonly":                    {preset("readonly", nil), all, false},
		"default":                     {preset("default", nil), all, true},
		"ci":                          {preset("ci", nil), all, true},
		"ci, nothing in the sandbox":  {preset("ci", nil), []Definition{read, note}, false},
		"no prompts":                  {preset("default", func(p *Policy) { p.NoPrompts = true }), all, false},
		"a tool of readonly":          {preset("readonly", func(p *Policy) { p.Tools = map[string]Mode{"shell": ModeAuto} }), all, false},
		"a deny of both classes":      {preset("ci", func(p *Policy) { p.Sandboxed = map[Class]Mode{ClassWrite: ModeDeny, ClassExecute: ModeDeny} }), all, false},
		"a deny of one class":         {preset("ci", func(p *Policy) { p.Sandboxed[ClassExecute] = ModeDeny }), all, true},
		"an administrator's readonly": {preset("ci", func(p *Policy) { p.Tighten = []Policy{preset("readonly", nil)} }), all, false},
	} {
		if got := tc.policy.AllowsSandboxed(tc.defs, "/w"); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
