//go:build linux

package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
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
