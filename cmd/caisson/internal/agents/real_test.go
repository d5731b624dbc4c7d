package agents

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
)

// agentPrograms installs the agents of testdata/npm, or takes those of the directory that
// AGENT_PROGRAMS names, and returns the directory of their programs.
func agentPrograms(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("AGENT_PROGRAMS"); dir != "" {
		return filepath.Join(dir, "node_modules", ".bin")
	}
	for _, program := range []string{"npm", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "npm"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	// The packages' scripts only choose and copy a program, which Find does too.
	install := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("needs the npm registry: %v\n%s", err, out)
	}
	return filepath.Join(dir, "node_modules", ".bin")
}

// TestRealAgents has each agent write a file, run a command and answer, with its built-in
// definition and a mock for its model.
func TestRealAgents(t *testing.T) {
	if testing.Short() {
		t.Skip("installs a gigabyte with npm")
	}
	bin := agentPrograms(t)
	type call struct{ tool, args string }
	for name, calls := range map[string][2]call{
		"claude":   {{"Write", `{"file_path":"DIR/made","content":"made"}`}, {"Bash", `{"command":"echo ran >ran","description":"run"}`}},
		"codex":    {{"exec_command", `{"cmd":"printf made >made"}`}, {"exec_command", `{"cmd":"echo ran >ran"}`}},
		"gemini":   {{"write_file", `{"file_path":"DIR/made","content":"made"}`}, {"run_shell_command", `{"command":"echo ran >ran"}`}},
		"opencode": {{"write", `{"filePath":"DIR/made","content":"made"}`}, {"bash", `{"command":"echo ran >ran","description":"run"}`}},
		"qwen":     {{"write_file", `{"file_path":"DIR/made","content":"made"}`}, {"run_shell_command", `{"command":"echo ran >ran","is_background":false}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for themselves
			dir := t.TempDir()
			model := &mockmodel.Model{Side: &mockmodel.Step{Text: "Title"}}
			for _, c := range calls {
				model.Steps = append(model.Steps, mockmodel.Step{Calls: []mockmodel.Call{{Name: c.tool, Arguments: strings.ReplaceAll(c.args, "DIR", dir)}}})
			}
			model.Steps = append(model.Steps, mockmodel.Step{Text: "PLUMAGE"})
			server := httptest.NewServer(model)
			defer server.Close()
			// Nothing of it may be an option, a placeholder or the shell's.
			const instruction = `--version of "it" {{model}} $(touch pwned) 'x'`
			out := runAgent(t, name, bin, dir, Run{
				Instruction: instruction, Model: "model-1", BaseURL: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), Workspace: dir,
			})
			if !strings.Contains(out, "PLUMAGE") {
				t.Errorf("output %s", out)
			}
			for file, want := range map[string]string{"made": "made", "ran": "ran\n"} {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || strings.TrimSpace(string(got)) != strings.TrimSpace(want) {
					t.Errorf("%s: %q, %v", file, got, err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
				t.Error("a shell got the instruction")
			}
			checkRequests(t, model.Requests(), instruction)
		})
	}
}

// checkRequests checks that the agent asked with the instruction, and that all requests
// had the constant key.
func checkRequests(t *testing.T, requests []mockmodel.Request, instruction string) {
	t.Helper()
	quoted, err := json.Marshal(instruction)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, r := range requests {
		if strings.Contains(string(r.Body), string(quoted[1:len(quoted)-1])) {
			told++
		}
		if r.Method == http.MethodHead { // Claude Code looks whether its host is there
			continue
		}
		key := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + r.Header.Get("X-Goog-Api-Key")
		if !strings.Contains(key, "caisson-bridge") {
			t.Errorf("%s %s has the key %q", r.Method, r.Path, key)
		}
	}
	if told < 3 {
		t.Errorf("%d of %d requests have the instruction", told, len(requests))
	}
}

// runAgent runs an agent on this machine with the variables and files of its definition,
// and returns its output.
func runAgent(t *testing.T, name, bin, dir string, r Run) string {
	t.Helper()
	a, err := New(new(config.Config), name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := (&Finder{Path: bin}).Find(a)
	if err != nil {
		t.Fatal(err)
	}
	if p.Version == "" || !strings.HasSuffix(*a.NPM, "@"+p.Version) {
		t.Errorf("version %q of %s: testdata/npm and agents.yaml differ", p.Version, *a.NPM)
	}
	r.Home = t.TempDir()
	l, err := a.Launch(p, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range l.Files {
		if err := os.MkdirAll(filepath.Join(r.Home, filepath.Dir(f.Path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.Home, f.Path), []byte(f.Content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, arg := range l.Argv {
		if rest, ok := strings.CutPrefix(arg, p.Mount.To+"/"); ok && arg == p.Path {
			l.Argv[i] = filepath.Join(p.Mount.From, rest)
		}
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, errors.New("the agent takes too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, l.Argv[0], l.Argv[1:]...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(l.Stdin)
	cmd.Env = append([]string{"HOME=" + r.Home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), "IS_SANDBOX=1"}, l.Env...)
	if name != "qwen" { // which ignores NO_PROXY
		cmd.Env = append(cmd.Env, "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=localhost,127.0.0.1") // as in a sandbox, no other host answers
	}
	cmd.WaitDelay = 5 * time.Second // an agent may leave programs
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}
