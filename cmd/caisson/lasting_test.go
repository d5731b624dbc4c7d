package main

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
)

func (w *world) onNewTerminal(t *testing.T, answers []string, args ...string) (status int, shown string) {
	t.Helper()
	seen := watch(t, answers)
	one := *w
	one.use(seen.slave)
	one.app.stdout = io.Discard
	one.env = append(slices.Clone(w.env), "TERM=xterm")
	status = one.run(append([]string{"--timeout", "1m"}, args...)...)
	return status, seen.end()
}

// TestAlwaysAtTheTerminal: lasting answers apply in the next run until they are
// revoked, and only to that command.
func TestAlwaysAtTheTerminal(t *testing.T) {
	w := newWorld(t, "  - calls: [{tool: shell, input: {command: echo hi}}]\n  - text: done\n")
	approvals := func(args ...string) (int, string) {
		var out bytes.Buffer
		d := w.app
		d.stdout = &out
		return run(context.Background(), append([]string{"approvals"}, args...), w.env, d), out.String()
	}
	const asks, refused = "wants to run", "refused by "
	for _, step := range []struct {
		name           string
		answers        []string
		asked, refused bool
		stored         string
	}{
		{"once", []string{"y\n"}, true, false, ""},
		{"asked again, always", []string{"A\n"}, true, false, "allow"},
		{"not asked", nil, false, false, "allow"},
		{"revoked: asked, never", []string{"d\n"}, true, true, "deny"},
		{"not asked, and refused", nil, false, true, "deny"},
	} {
		if strings.HasPrefix(step.name, "revoked") {
			if status, out := approvals("revoke", "--workspace", w.dir, "echo hi"); status != 0 || !strings.Contains(out, "Revoked 1") {
				t.Fatalf("revoke: status %d, %s", status, out)
			}
		}
		_, shown := w.onNewTerminal(t, step.answers, "--policy", "default")
		if strings.Contains(shown, asks) != step.asked || strings.Contains(shown, refused) != step.refused {
			t.Errorf("%s: asked %t, refused %t\n%s", step.name, strings.Contains(shown, asks), strings.Contains(shown, refused), shown)
		}
		_, list := approvals("list", "--workspace", w.dir)
		if got := strings.Contains(list, "echo hi"); got != (step.stored != "") || !strings.Contains(list, step.stored) {
			t.Errorf("%s: stored\n%s", step.name, list)
		}
	}
}
