package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
)

// hostileText clears the screen, hides, sets a title and the clipboard, writes
// over its line, and holds what nobody sees. It is written as YAML has it.
const hostileText = `\e[2J\e[8mhidden\e]0;title\a\e]8;;x\a\e]52;c;ZXZpbA==\a\rover\b\b\x7f\u009b31m\u202eevil\u200b\u2066\U000E0041`

// hostileTurns have it in everything that a model and a sandbox can put before
// people: a command, its output, a path, a change, a tool's name, a failure, an answer.
const hostileTurns = `
  - text: "I say ` + hostileText + `"
    calls:
      - {tool: shell, input: {command: "echo '` + hostileText + `'; : ` + hostileText + `"}}
      - {tool: write_file, input: {path: "a` + hostileText + `b", content: "x` + hostileText + `\ny\n"}}
  - calls:
      - {tool: "no` + hostileText + `", input: {}}
      - {tool: read_file, input: {path: "missing` + hostileText + `"}}
      - {tool: read_file, input: {path: "../` + hostileText + `"}}
      - {tool: read_file, input: {path: 1, "` + hostileText + `": 2}}
      - {tool: shell, input: {command: "printf '` + hostileText + `\n' >&2; exit 3"}}
  - text: "done ` + hostileText + `"
`

// controls are what a text must not bring to a dumb terminal, which gets none of
// our own: controls but line ends and tabs, and what nobody sees.
func controls(text string) []string {
	var found []string
	for i, r := range text {
		switch {
		case r == '\n', r == '\r' && strings.HasPrefix(text[i:], "\r\n"), r == '\t':
		case r == utf8.RuneError, unicode.IsControl(r), unicode.Is(unicode.Cf, r):
			found = append(found, fmt.Sprintf("%U in %q", r, text[max(0, i-20):min(len(text), i+20)]))
		}
	}
	return found
}

// TestNothingHostileReachesATerminal is acceptance case C37: a session, its
// questions, what it changed and its records are shown on a terminal, and no
// character that a terminal obeys or a person can't see comes through. The
// control is the pipe, which gets the answer as it is.
func TestNothingHostileReachesATerminal(t *testing.T) {
	show := func(w *world, answers []string, args ...string) (status int, shown string) {
		t.Helper()
		master, slave := openTerminal(t)
		seen := watch(master, answers)
		w.app.stdin, w.app.stdout, w.app.stderr = slave, slave, slave
		w.app.size = func() (int, int) { return 100, 30 }
		w.app.pressed = func(ctx context.Context, _ time.Duration) (bool, error) {
			return ui.KeyPressed(ctx, slave, time.Millisecond)
		}
		status = run(context.Background(), args, w.env, w.app)
		fmt.Fprint(slave, endMark)
		<-seen.done
		return status, strings.TrimSuffix(seen.String(), endMark)
	}
	for _, mode := range []string{"bind", "overlay"} {
		t.Run(mode, func(t *testing.T) {
			if mode == "overlay" && os.Geteuid() != 0 {
				t.Skip("needs root, to mount an overlay")
			}
			w := newWorld(t, hostileTurns)
			args := append(w.args, "--policy", "default", "--mode", mode, "task")
			status, shown := show(w, []string{"y\n", "y\n", "y\n"}, args...)
			if status != 0 {
				t.Errorf("status %d\n%s", status, shown)
			}
			for _, want := range []string{`\x1b[2J`, `\u202e`, `\u009b`, "hidden"} {
				if !strings.Contains(shown, want) {
					t.Errorf("what is hidden is not shown as %s:\n%s", want, shown)
				}
			}
			sessions, err := filepath.Glob(filepath.Join(filepath.Dir(w.dir), "home/.local/state/caisson/sessions/ses_*"))
			if err != nil || len(sessions) != 1 {
				t.Fatalf("sessions %q, %v", sessions, err)
			}
			id := filepath.Base(sessions[0])
			all := map[string]string{"run": shown}
			for name, args := range map[string][]string{
				"trace ls": {"trace", "ls"}, "trace show": {"trace", "show", id}, "diff": {"diff", id}, "diff stat": {"diff", "--stat", id}, "apply": {"apply", "--dry-run", id},
				"sandbox ls": {"sandbox", "ls"}, "approvals": {"approvals", "list"},
				"diff json": {"diff", "--json", id}, "apply json": {"apply", "--dry-run", "--json", id}, "trace show json": {"trace", "show", "--json", id},
				"trace show kind": {"trace", "show", "--kind", "tool.called", id}, "trace ls json": {"trace", "ls", "--json"},
			} {
				_, text := show(w, nil, args...)
				all[name] = text
			}
			if !strings.Contains(all["trace show"], "hidden") || mode == "overlay" && !strings.Contains(all["diff"], "hidden") {
				t.Errorf("control: what was hostile is not shown at all:\n%s\n%s", all["trace show"], all["diff"])
			}
			for name, text := range all {
				for _, found := range controls(text) {
					t.Errorf("%s: %s", name, found)
				}
			}
		})
	}
	w := newWorld(t, hostileTurns)
	var out bytes.Buffer
	w.app.stdout = &out
	w.run("--policy", "ci")
	if len(controls(out.String())) == 0 {
		t.Errorf("control: the answer holds nothing hostile: %q", out.String())
	}
	if names, err := filepath.Glob(filepath.Join(w.dir, "a*b")); err != nil || len(names) != 1 || len(controls(names[0])) == 0 {
		t.Errorf("control: the file's name is not hostile: %q, %v", names, err)
	}
}
