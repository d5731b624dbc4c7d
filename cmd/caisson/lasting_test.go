package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
)

func (w *world) onNewTerminal(t *testing.T, answers []string, args ...string) (status int, shown string) {
	t.Helper()
	master, slave := openTerminal(t)
	seen := watch(master, answers)
	one := *w
	one.app.stdin, one.app.stdout, one.app.stderr = slave, &bytes.Buffer{}, slave
	one.app.size = func() (int, int) { return 100, 30 }
	one.app.pressed = func(ctx context.Context, _ time.Duration) (bool, error) {
		return ui.KeyPressed(ctx, slave, time.Millisecond)
	}
	one.env = append(append([]string{}, w.env...), "TERM=xterm")
	status = one.run(append([]string{"--timeout", "1m"}, args...)...)
	fmt.Fprint(slave, endMark)
	<-seen.done
	return status, strings.TrimSuffix(seen.String(), endMark)
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
