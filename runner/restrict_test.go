package runner

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestRestrictionsBindTheBuiltInTools: each tool that runs commands, even a declared one, is as
// restricted as shell, and each that returns files' content as read_file. The control is a tool
// that does neither.
func TestRestrictionsBindTheBuiltInTools(t *testing.T) {
	declared := func(name tools.Name, class tools.Class) shell.Declared {
		return shell.Declared{
			Name: name, Description: "Runs a command.", Class: class, InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
			Template: shell.Template{Argv: []string{"true"}},
		}
	}
	defs, err := DefinitionsOf(ToolOptions{Declared: []shell.Declared{declared("run_tests", tools.ClassExecute), declared("format_code", tools.ClassWrite)}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	auto := map[tools.Class]policy.Mode{tools.ClassRead: policy.ModeAuto, tools.ClassWrite: policy.ModeAuto, tools.ClassExecute: policy.ModeAuto}
	for restricted, want := range map[string]struct {
		input string
		bound []tools.Name
	}{
		"shell":     {`{}`, []tools.Name{"format_code", "run_tests", "shell", "shell_input", "verify_shell"}},
		"read_file": {`{"checks":[{"kind":"contains","path":"a","value":"x"}]}`, []tools.Name{"grep", "read_file", "verify", "verify_shell"}},
	} {
		own := map[string]policy.Mode{restricted: policy.ModeDeny}
		for name, rules := range map[string]policy.Policy{
			"a rule":        {Classes: auto, Tools: own},
			"a requirement": {Classes: auto, Tighten: []policy.Policy{{Classes: auto, Tools: own}}},
		} {
			var bound []tools.Name
			for _, def := range defs {
				if rules.DecideCall(policy.DangerMatcher{}, def, "", json.RawMessage(want.input)).Mode == policy.ModeDeny {
					bound = append(bound, def.Name)
				}
			}
			slices.Sort(bound)
			if !slices.Equal(bound, want.bound) {
				t.Errorf("%s on %s binds %q, want %q", name, restricted, bound, want.bound)
			}
		}
	}
	for _, def := range defs {
		if def.Commands != nil && def.Name != tools.NameShell && (def.ActsAs == nil || !slices.Contains(def.ActsAs(nil), tools.NameShell)) {
			t.Errorf("%s runs commands and does not act as shell", def.Name)
		}
	}
}
