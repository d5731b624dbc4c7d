// Package opa tests the example of a decider that asks an Open Policy Agent.
package opa

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const script = `
version: 1
name: scripted-model
turns:
  - calls: [{tool: shell, input: {command: git push}}, {tool: verify_shell, input: {checks: [{kind: shell, cmd: git push}]}}, {tool: shell, input: {command: echo fine}}]
  - text: Done.
`

// TestPushes runs a session whose commands an OPA server rules on. Once the server has
// gone, all are refused.
func TestPushes(t *testing.T) {
	bin := os.Getenv("E2E_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	caisson, err := filepath.Abs(filepath.Join(bin, "caisson"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	program := filepath.Join(home, "opa")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/open-policy-agent/opa").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := exec.Command(program, "run", "--server", "--disable-telemetry", "--addr", address, filepath.Join("..", "..", "examples", "decider", "pushes.rego"))
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = server.Process.Kill() // it may have ended
		_ = server.Wait()
	}
	defer stop()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if res, err := http.Get("http://" + address + "/health"); err == nil {
			_ = res.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("the server does not answer:\n%s", log.String())
		}
	}
	for path, text := range map[string]string{
		"script.yaml":                 script,
		".config/caisson/config.yaml": "policy:\n  decider: {url: \"http://" + address + "/v0/data/caisson/answer\", classes: [execute]}\n",
		"workspace/README.md":         "A workspace.\n",
	} {
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rulings := func() (got []string) {
		t.Helper()
		cmd := exec.Command(caisson, "run", "--json", "--policy", "ci", "--workspace", filepath.Join(home, "workspace"), "--model", "replay/"+filepath.Join(home, "script.yaml"), "task")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, `"by":"decider"`) {
				continue
			}
			for _, word := range []string{`"decision":"allow"`, `"decision":"deny"`, "Pushes are for people."} {
				if strings.Contains(line, word) {
					got = append(got, word)
				}
			}
		}
		return got
	}
	if got, want := rulings(), []string{`"decision":"deny"`, "Pushes are for people.", `"decision":"deny"`, "Pushes are for people.", `"decision":"allow"`}; !slices.Equal(got, want) {
		t.Errorf("ruled %q, want %q", got, want)
	}
	stop()
	if got, want := rulings(), []string{`"decision":"deny"`, `"decision":"deny"`, `"decision":"deny"`}; !slices.Equal(got, want) {
		t.Errorf("without the server: ruled %q, want %q", got, want)
	}
}
