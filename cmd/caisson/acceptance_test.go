package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/runner/sessiondir"
)

// hostileText clears the screen, hides, sets a title and the clipboard, overwrites its
// line, and has invisible characters. It is in YAML's form.
const hostileText = `\e[2J\e[8mhidden\e]0;title\a\e]8;;x\a\e]52;c;ZXZpbA==\a\rover\b\b\x7f\u009b31m\u202eevil\u200b\u2066\U000E0041`

// hostileTurns have it in everything that a model and a sandbox can show to users: a
// command, its output, a path, a change, a tool's name, a failure, an answer.
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

// hostileSkill is a skill in a directory with a hostile name, with the text in its
// description, allowed-tools and body.
func hostileSkill(t *testing.T, workspace string) {
	t.Helper()
	raw := strings.NewReplacer(`\e`, "\x1b", `\a`, "\a", `\r`, "\r", `\b`, "\b", `\x7f`, "\x7f", `\u009b`, "\u009b", `\u202e`, "\u202e", `\u200b`, "\u200b", `\u2066`, "\u2066", `\U000E0041`, "\U000E0041").Replace(hostileText)
	text := "---\nname: theirs\ndescription: \"" + hostileText + "\"\nallowed-tools: [Read, \"" + hostileText + "\"]\n---\n" + raw + "\n"
	for _, dir := range []string{"a" + strings.ReplaceAll(raw, "/", "") + "b", "theirs", "c\u202ed"} {
		path := filepath.Join(workspace, ".agents/skills", dir, "SKILL.md")
		writeFile(t, path, text, 0o644)
	}
	must(t, os.WriteFile(filepath.Join(workspace, "AGENTS.md"), []byte(raw), 0o644))
}

// controls returns what a text must not bring to a dumb terminal: controls except line
// ends and tabs, and invisible characters.
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

// TestNothingHostileReachesATerminal is acceptance case C37: no control or invisible
// character of a session, its questions, changes and records reaches a terminal. The
// control is the pipe, which gets the answer unchanged.
func TestNothingHostileReachesATerminal(t *testing.T) {
	show := func(w *world, answers []string, args ...string) (status int, shown string) {
		t.Helper()
		seen := watch(t, answers)
		w.use(seen.slave)
		status = run(context.Background(), args, w.env, w.app)
		return status, seen.end()
	}
	for _, mode := range []string{"bind", "overlay"} {
		t.Run(mode, func(t *testing.T) {
			if mode == "overlay" && os.Geteuid() != 0 {
				t.Skip("needs root, to mount an overlay")
			}
			w := newWorld(t, strings.Replace(hostileTurns, "  - text: \"done", "  - calls: [{tool: load_skill, input: {name: theirs}}]\n  - text: \"done", 1))
			hostileSkill(t, w.dir)
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
				"sandbox ls": {"sandbox", "ls"}, "approvals": {"approvals", "ls"},
				"diff json": {"diff", "--json", id}, "apply json": {"apply", "--dry-run", "--json", id}, "trace show json": {"trace", "show", "--json", id},
				"skills": {"skills", "ls", "--workspace", w.dir}, "skills json": {"skills", "ls", "--json", "--workspace", w.dir},
				"skill": {"skills", "show", "--workspace", w.dir, "theirs"}, "skill json": {"skills", "show", "--json", "--workspace", w.dir, "theirs"},
				"trace show kind": {"trace", "show", "--kind", "tool.called", id}, "trace ls json": {"trace", "ls", "--json"},
			} {
				_, text := show(w, nil, args...)
				all[name] = text
			}
			if !strings.Contains(all["trace show"], "hidden") || mode == "overlay" && !strings.Contains(all["diff"], "hidden") {
				t.Errorf("control: what was hostile is not shown at all:\n%s\n%s", all["trace show"], all["diff"])
			}
			if !strings.Contains(all["skill"], "hidden") || !strings.Contains(all["skills json"], "hidden") {
				t.Errorf("control: the skill is not shown at all:\n%s\n%s", all["skill"], all["skills json"])
			}
			for _, name := range []string{"skills json", "skill json"} {
				if !json.Valid([]byte(all[name])) {
					t.Errorf("%s is no JSON: %s", name, all[name])
				}
			}
			logged, err := os.ReadFile(filepath.Join(sessions[0], sessiondir.LogFile))
			if err != nil {
				t.Error(err)
			}
			all["log"] = string(logged)
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
