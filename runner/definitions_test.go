//go:build linux

package runner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

// What is told without a session is what a session has.
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

// TestDefinitionsOfOptions: the bounds of commands that models are told are those of
// the options, the usual ones without any, and a tool that can't be made is an error.
func TestDefinitionsOfOptions(t *testing.T) {
	text := func(o Options) string {
		defs, err := DefinitionsOf(o)
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
	short := limits.DefaultResources()
	short.CommandTime = 7 * time.Second
	if usual := text(Options{}); usual != text(Options{SandboxOptions: SandboxOptions{Resources: limits.DefaultResources()}}) || usual == text(Options{SandboxOptions: SandboxOptions{Resources: short}}) {
		t.Error("the time of commands that models are told is another one")
	}
	for name, o := range map[string]Options{
		"a declared tool without a name":    {PolicyOptions: PolicyOptions{Declared: []shell.Declared{{}}}},
		"a grace period below zero":         {SandboxOptions: SandboxOptions{Grace: -1}},
		"an exchange of less than no bytes": {PolicyOptions: PolicyOptions{Fetch: FetchOptions{Egress: limits.EgressBudget{Bytes: -1}}}},
	} {
		if defs, err := DefinitionsOf(o); err == nil {
			t.Errorf("%s: %d definitions", name, len(defs))
		}
	}
}
