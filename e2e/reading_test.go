package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadingNeedsNoSandbox reads on backends that can't start a sandbox, because
// the image is missing or the engine is. What executes is the control: it ends
// with 44 and the cause, or starts one sandbox where that can be.
func TestReadingNeedsNoSandbox(t *testing.T) {
	const text = "what the file holds"
	read := call("read_file", map[string]any{"path": "notes.txt"})
	missing := []string{"--image", "rootfs:/no/such/folder"}
	started := func(text string) int { return len(readRecords(t, text).of("sandbox.started")) }
	newReader := func(t *testing.T) *machine {
		m := newMachine(t)
		m.write(t, "notes.txt", text+"\n")
		return m
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		on := []string{"--backend", backend}
		for _, mode := range []string{"bind", "overlay"} {
			t.Run("tools call in mode "+mode, func(t *testing.T) {
				m := newReader(t)
				out := m.run(t, append([]string{"tools", "call", "--workspace", m.workspace, "--mode", mode, "--json", "read_file", `{"path":"notes.txt"}`}, append(on, missing...)...)...)
				out.want(t, 0)
				var result struct{ Session string }
				if err := json.Unmarshal([]byte(out.stdout), &result); err != nil || !strings.Contains(out.stdout, text) || out.stderr != "" {
					t.Fatalf("%v: %s%s", err, out.stdout, out.stderr)
				}
				trace, err := os.ReadFile(filepath.Join(m.stateDir(), "sessions", result.Session, "trace.jsonl"))
				if err != nil || started(string(trace)) != 0 {
					t.Errorf("%v: a sandbox was started:\n%s", err, trace)
				}
				m.wantNothingLeft(t, result.Session)
			})
		}
		t.Run("command on a missing image", func(t *testing.T) {
			m := newReader(t)
			out := m.run(t, append([]string{"tools", "call", "--workspace", m.workspace, "shell", `{"command":"cat notes.txt"}`}, append(on, missing...)...)...)
			out.want(t, 44)
			if out.stdout != "" || !strings.Contains(out.stderr, "/no/such/folder") || !strings.Contains(out.stderr, "--image") {
				t.Errorf("%s%s", out.stdout, out.stderr)
			}
		})
		t.Run("a task that reads and then runs a command", func(t *testing.T) {
			m := newReader(t)
			out := m.run(t, taskArgs(m, append(on, m.playing(t, []scriptCall{read}, []scriptCall{shell("cat notes.txt")}, []scriptCall{read})...)...)...)
			out.want(t, 0)
			if n := started(out.stdout); n != 1 {
				t.Errorf("%d sandboxes were started", n)
			}
		})
		t.Run("a task that reads on a missing image", func(t *testing.T) {
			m := newReader(t)
			out := m.run(t, taskArgs(m, append(append(on, missing...), m.playing(t, []scriptCall{read})...)...)...)
			out.want(t, 0)
			if started(out.stdout) != 0 || len(readRecords(t, out.stdout).of("warning")) == 0 || !strings.Contains(out.stdout, text) {
				t.Errorf("%s", out.stdout)
			}
		})
	})
	t.Run("no engine", func(t *testing.T) {
		m := newReader(t)
		m.env = append(m.env, "DOCKER_HOST=unix:///no/such.sock")
		play := append([]string{"--backend", "docker"}, m.playing(t, []scriptCall{read}, []scriptCall{shell("touch made")})...)
		out := m.run(t, append(taskArgs(m, play...), "--policy", "readonly")...)
		out.want(t, 0)
		if started(out.stdout) != 0 || !strings.Contains(out.stdout, text) {
			t.Errorf("%s", out.stdout)
		}
		out = m.run(t, taskArgs(m, play...)...)
		out.want(t, 44)
		if !strings.Contains(out.stderr, "/no/such.sock") || !strings.Contains(out.stdout, text) {
			t.Errorf("%s", out.stderr)
		}
		if _, err := os.Stat(filepath.Join(m.workspace, "made")); !os.IsNotExist(err) {
			t.Errorf("the command ran: %v", err)
		}
	})
}
