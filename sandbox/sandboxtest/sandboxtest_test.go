package sandboxtest

import (
	"strings"
	"testing"
)

// Each check must find a fault, which shows that it can fail.
func TestFaultsNameAllChecks(t *testing.T) {
	missing := map[string]bool{}
	for _, c := range allChecks() {
		if missing[c.name] || c.name != strings.TrimSpace(c.name) {
			t.Errorf("name %q", c.name)
		}
		missing[c.name] = true
	}
	if len(missing) < 80 {
		t.Errorf("%d checks, want the whole suite", len(missing))
	}
	found, names := map[string]bool{}, map[string]bool{}
	for _, f := range faults() {
		if names[f.name] || len(f.checks) == 0 {
			t.Errorf("fault %q is there twice, or is found by no check", f.name)
		}
		names[f.name] = true
		for _, name := range f.checks {
			if !missing[name] && !found[name] {
				t.Errorf("fault %q: there is no check %q", f.name, name)
			}
			found[name] = true
			delete(missing, name)
		}
	}
	for name := range missing {
		t.Errorf("no fault is found by check %q", name)
	}
}
