package runner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

// Definitions without a session equal a session's.
func TestDefinitions(t *testing.T) {
	got, err := Definitions()
	if err != nil {
		t.Fatal(err)
	}
	s := newBench(t, "  - text: Done.\n").opened()
	names := func(defs []tools.Definition) map[tools.Name]tools.Class {
		all := map[tools.Name]tools.Class{}
		for _, d := range defs {
			if d.EnabledByDefault { // fetch is not, without an allowlist
				all[d.Name] = d.Class
			}
		}
		return all
	}
	if diff := cmp.Diff(names(s.tools.Definitions()), names(got)); diff != "" || len(got) == 0 {
		t.Errorf("(-a session's +told):\n%s", diff)
	}
}

// TestDefinitionsOfOptions: models are told the options' bounds of commands, or the defaults. A
// tool that can't be made is an error.
func TestDefinitionsOfOptions(t *testing.T) {
	text := func(commandTime time.Duration) string {
		defs, err := DefinitionsOf(ToolOptions{}, commandTime)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, d := range defs {
			fmt.Fprintf(&out, "%s %s\n", d.Description, d.InputSchema)
			if d.Name == "" {
				t.Error("a tool without a name")
			}
		}
		return out.String()
	}
	if usual := text(0); usual != text(limits.DefaultResources().CommandTime) || usual == text(7*time.Second) {
		t.Error("the time of commands that models are told is another one")
	}
	for name, o := range map[string]ToolOptions{
		"a declared tool without a name":    {Declared: []shell.Declared{{}}},
		"an exchange of less than no bytes": {Fetch: FetchOptions{Egress: limits.EgressBudget{Bytes: -1}}},
	} {
		if defs, err := DefinitionsOf(o, 0); err == nil {
			t.Errorf("%s: %d definitions", name, len(defs))
		}
	}
	if defs, err := DefinitionsOf(ToolOptions{}, -1); err == nil {
		t.Errorf("commands of less than no time: %d definitions", len(defs))
	}
	if all, err := newDefiner(ToolOptions{}, sandbox.Setup{Grace: -1}).listFactories(); err == nil {
		t.Errorf("a grace period below zero: %d tools", len(all))
	}
}
