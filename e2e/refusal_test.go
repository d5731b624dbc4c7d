package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRefusals gives caisson what it can't work with: each time the exit
// status of docs/exit-status.md, and one paragraph with cause and hint.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name    string
		backend string // needed
		prepare func(t *testing.T, m *machine)
		args    func(m *machine) []string // nil: one replayed answer
		status  int
		says    []string
	}{
		{
			name: "unknown flag", status: 2, says: []string{"--nonsense"},
			args: func(*machine) []string { return []string{"run", "--nonsense", "task"} },
		},
		{
			name: "unknown command", status: 2, says: []string{"frobnicate"},
			args: func(*machine) []string { return []string{"frobnicate"} },
		},
		{
			name: "unknown configuration key", status: 52, says: []string{"config.yaml:2:1", "modle"},
			prepare: func(t *testing.T, m *machine) { m.config(t, "# ours\nmodle: openai/gpt-5\n") },
		},
		{
			name: "duplicate configuration key", status: 52, says: []string{"config.yaml:2:1"},
			prepare: func(t *testing.T, m *machine) { m.config(t, "backend: gvisor\nbackend: docker\n") },
		},
		{
			name: "no key", status: 41, says: []string{"OPENAI_API_KEY"},
			args: func(m *machine) []string {
				return []string{"run", "--workspace", m.workspace, "--model", "openai/gpt-5", "task"}
			},
		},
		{
			name: "workspace missing", status: 42, says: []string{"no-such-folder"},
			args: func(m *machine) []string {
				return []string{"run", "--workspace", filepath.Join(m.home, "no-such-folder"), "task"}
			},
		},
		{
			name: "workspace is a file", status: 42, says: []string{"a-file"},
			prepare: func(t *testing.T, m *machine) { m.write(t, "a-file", "x") },
			args: func(m *machine) []string {
				return []string{"run", "--workspace", filepath.Join(m.workspace, "a-file"), "task"}
			},
		},
		{
			name: "workspace is the root", status: 42, says: []string{"/"},
			args: func(*machine) []string { return []string{"run", "--workspace", "/", "task"} },
		},
		{
			name: "workspace is the home", status: 42, says: []string{"home"},
			args: func(m *machine) []string { return []string{"run", "--workspace", m.home, "task"} },
		},
		{
			name: "unknown backend", status: 2, says: []string{"chroot"},
			args: func(m *machine) []string {
				return []string{"run", "--workspace", m.workspace, "--backend", "chroot", "task"}
			},
		},
		{
			name: "missing image", backend: "docker", status: 44, says: []string{"no-such-image"},
			args: func(*machine) []string { return []string{"--backend", "docker", "--image", "no-such-image:1"} },
		},
		{
			name: "missing root filesystem", backend: "gvisor", status: 44, says: []string{"/no/such/folder"},
			args: func(*machine) []string { return []string{"--backend", "gvisor", "--image", "rootfs:/no/such/folder"} },
		},
		{
			name: "no engine", status: 44, says: []string{"/no/such.sock"},
			prepare: func(_ *testing.T, m *machine) { m.env = append(m.env, "DOCKER_HOST=unix:///no/such.sock") },
			args:    func(*machine) []string { return []string{"--backend", "docker"} },
		},
		{
			name: "no permission for the engine", backend: "docker", status: 44, says: []string{"permission", "docker"},
			prepare: func(t *testing.T, m *machine) {
				if os.Getuid() != 0 {
					lacking(t, "", "needs root, to become another user")
				}
				if err := os.Chown(m.workspace, ordinary, ordinary); err != nil {
					t.Fatal(err)
				}
				m.become(t, ordinary, ordinary)
			},
			args: func(*machine) []string { return []string{"--backend", "docker"} },
		},
		{
			name: "unreachable model", backend: "gvisor", status: 1, says: []string{"127.0.0.1"},
			prepare: func(t *testing.T, m *machine) {
				m.env = append(m.env, "OPENAI_API_KEY=test", fmt.Sprintf("OPENAI_BASE_URL=http://127.0.0.1:%d/v1", freePort(t)))
			},
			args: func(m *machine) []string {
				return []string{"run", "--workspace", m.workspace, "--backend", "gvisor", "--model", "openai/gpt-5", "task"}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.backend != "" {
				needBackend(t, test.backend)
			}
			m := newMachine(t)
			if test.prepare != nil {
				test.prepare(t, m)
			}
			var args []string
			if test.args != nil {
				args = test.args(m)
			}
			if len(args) == 0 || strings.HasPrefix(args[0], "--") {
				args = taskArgs(m, append(args, m.playing(t, []scriptCall{shell("true")})...)...)
			}
			out := m.run(t, args...)
			out.want(t, test.status)
			for _, says := range test.says {
				if !strings.Contains(out.stderr, says) {
					t.Errorf("the message does not name %q:\n%s", says, out.stderr)
				}
			}
			wantOneParagraph(t, out.stderr)
		})
	}
}

// config writes the user's configuration file.
func (m *machine) config(t testing.TB, text string) {
	t.Helper()
	writeFile(t, filepath.Join(m.home, ".config", "caisson", "config.yaml"), text, 0o600)
}

// wantOneParagraph fails the test unless a message is short and for people:
// cause and hint, no stack, nothing twice. What a machine can't protect takes a
// line each, of which a message may have any number.
func wantOneParagraph(t *testing.T, message string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(message), "\n")
	own := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return strings.HasPrefix(line, "! not protected here: ") || strings.HasPrefix(line, "! model: no answer, retry ")
	})
	if len(own) > 8 || strings.Contains(message, "goroutine ") || strings.Contains(message, "panic") {
		t.Errorf("the message is no paragraph (%d lines):\n%s", len(own), message)
	}
	seen := map[string]bool{}
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" && seen[line] {
			t.Errorf("the message says twice: %s", line)
		}
		seen[line] = true
	}
}
