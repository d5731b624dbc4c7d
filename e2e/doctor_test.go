package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctor lets the doctor start a real sandbox on each backend, in both
// modes: it starts, a command in it reaches none of the sockets that answer
// outside, and nothing is left of it.
func TestDoctor(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		for _, mode := range []string{"bind", "overlay"} {
			out := m.run(t, "doctor", "--backend", backend, "--mode", mode, "--json")
			out.want(t, 0)
			findings := parse[[]struct{ Check, Result, Detail, Hint string }](t, out.stdout)
			got := map[string]string{}
			for _, f := range findings {
				if f.Result == "warning" && f.Hint == "" {
					t.Errorf("%s: %s has no hint", f.Check, f.Detail)
				}
				got[f.Check] = f.Result + ": " + f.Detail
			}
			if !strings.HasPrefix(got["sandbox start"], "ok: "+backend+" in ") || !strings.Contains(got["sandbox start"], ", "+mode+";") {
				t.Errorf("%s: %q", mode, got["sandbox start"])
			}
			if network := got["network"]; !strings.HasPrefix(network, "ok: blocked") || !strings.Contains(network, "127.0.0.1") || !strings.Contains(network, "abstract socket") {
				t.Errorf("%s: %q", mode, network)
			}
		}
		if left := m.bundles(t); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		sessions, err := os.ReadDir(filepath.Join(m.stateDir(), "sessions"))
		if err != nil || len(sessions) > 0 {
			t.Errorf("left of sessions: %v, %v", sessions, err)
		}
	})
}
