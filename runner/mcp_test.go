package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/policy"
)

// toolServer is a server with one tool, echo, in a fake sandbox.
type toolServer struct {
	mu       sync.Mutex
	commands []sandbox.Command
	// crash ends the running server when closed.
	crash chan struct{}
}

// serve implements fakesandbox.Script.
func (s *toolServer) serve(ctx context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
	s.mu.Lock()
	s.commands = append(s.commands, cmd)
	crash := make(chan struct{})
	s.crash = crash
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		answerRequests(cmd.Stdin, cmd.Stdout)
	}()
	select {
	case <-ended:
		return sandbox.ExitStatus{}
	case <-b.Done():
		return sandbox.ExitStatus{Code: -1, Signal: 9}
	case <-crash:
		return sandbox.ExitStatus{Code: 3}
	case <-ctx.Done():
		return sandbox.ExitStatus{Code: -1, Signal: 15}
	}
}

// answerRequests answers requests of JSON-RPC, a line each.
func answerRequests(r io.Reader, w io.Writer) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				ProtocolVersion string
				Arguments       struct{ Text string }
			}
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		answer := `"error":{"code":-32601,"message":"no such method"}`
		switch m.Method {
		case "initialize":
			answer = fmt.Sprintf(`"result":{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1.2"}}`, m.Params.ProtocolVersion)
		case "ping":
			answer = `"result":{}`
		case "tools/list":
			answer = `"result":{"tools":[{"name":"echo","description":"Echo.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`
		case "tools/call":
			answer = fmt.Sprintf(`"result":{"content":[{"type":"text","text":%q}]}`, "echo "+m.Params.Arguments.Text)
		}
		if _, err := fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`+"\n", m.ID, answer); err != nil {
			return
		}
	}
}

// newServerBench returns a bench of a session with these servers, whose calls the policy allows.
func newServerBench(t *testing.T, servers ...MCPServer) (*bench, *toolServer) {
	t.Helper()
	b, s := newBench(t, ""), &toolServer{}
	b.backend.Scripts["serve"] = s.serve
	b.opts.MCP.Servers = servers
	for _, one := range servers {
		if b.opts.Policy.Tools = maps.Clone(b.opts.Policy.Tools); b.opts.Policy.Tools == nil {
			b.opts.Policy.Tools = map[string]policy.Mode{}
		}
		b.opts.Policy.Tools[one.Name+"/*"] = policy.ModeAuto
	}
	return b, s
}

// inSandbox returns a sandboxed server.
func inSandbox(name string) MCPServer {
	return MCPServer{Server: mcp.Server{Name: name, Command: "program", Args: []string{"serve"}}}
}

// TestServerInSandbox checks how a server is started, called, recorded and stopped.
func TestServerInSandbox(t *testing.T) {
	one := inSandbox("one")
	one.Env, one.Processes, one.Memory = []string{"TOKEN=value"}, 10, 100<<20
	b, server := newServerBench(t, one, inSandbox("two"))
	b.opts.Env = []string{"OF_AGENT=1"}
	s := b.opened()
	if n := len(b.backend.Sandboxes); n != 0 {
		t.Errorf("%d sandboxes before a call", n)
	}
	for _, name := range []string{"one/echo", "two/echo"} {
		r, err := s.Call(t.Context(), tools.Name(name), json.RawMessage(`{"text":"hello"}`))
		if err != nil || r.IsError || !strings.Contains(boundary.ResultText(r.Content), "echo hello") {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
	}
	r := s.Close()
	b.backend.RequireGone(t)
	if len(server.commands) != 2 {
		t.Fatalf("%d servers were started", len(server.commands))
	}
	slices.SortFunc(server.commands, func(a, b sandbox.Command) int { return a.Identity - b.Identity })
	for i, cmd := range server.commands {
		if cmd.Identity != i+1 || !cmd.Separate || cmd.Env != nil || cmd.Proxy || cmd.Dir != "" {
			t.Errorf("command %+v", cmd)
		}
	}
	if !slices.Equal(server.commands[0].Variables, []string{"TOKEN=value"}) || len(server.commands[1].Variables) > 0 {
		t.Errorf("variables %q and %q", server.commands[0].Variables, server.commands[1].Variables)
	}
	spec := b.backend.Sandboxes[0].Spec
	if spec.Egress != nil || spec.Resources.PIDs != b.opts.Resources.PIDs+10+DefaultMCPProcesses || spec.Resources.MemoryBytes != b.opts.Resources.MemoryBytes+100<<20+DefaultMCPMemory {
		t.Errorf("the sandbox has %+v, %+v", spec.Resources, spec.Egress)
	}
	if want := []int64{50 << 20, DefaultMCPMemory / 2}; !slices.Equal(spec.Homes, want) {
		t.Errorf("homes of %d bytes, not %d", spec.Homes, want)
	}
	records := b.records(r)
	created := of[record.SessionCreated](t, records)[0]
	if len(created.MCPServers) != 2 || created.MCPServers[0].Identity != 1 || !slices.Equal(created.MCPServers[0].Env, []string{"TOKEN"}) || created.MCPServers[0].Runs != "sandbox" {
		t.Errorf("created with %+v", created.MCPServers)
	}
	started, stopped := of[record.MCPServerStarted](t, records), of[record.MCPServerStopped](t, records)
	if len(started) != 2 || len(stopped) != 2 || started[0].ToolCount != 1 || started[0].Version != "1.2" || started[0].Tools[0].Hash == "" {
		t.Errorf("started %+v, stopped %+v", started, stopped)
	}
	for _, p := range stopped {
		if p.Cause != "" {
			t.Errorf("stopped %+v", p)
		}
	}
}

// TestServerOnHostDirectory checks that a host server does not start in the workspace, where it would
// load the agent's files, and is no program of the workspace.
func TestServerOnHostDirectory(t *testing.T) {
	out := filepath.Join(t.TempDir(), "directory")
	b, _ := newServerBench(t, MCPServer{Server: mcp.Server{Name: "one", Command: "sh", Args: []string{"-c", `pwd > "$0"`, out}, OnHost: true}})
	bin := filepath.Join(b.opts.Workspace.Path, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "sh"), []byte("#!/bin/sh\necho own > "+out+"\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	b.opts.MCP.HostEnv = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	s := b.opened()
	if _, err := s.StartServers(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if got, err := os.ReadFile(out); err != nil || string(got) != "/\n" {
		t.Errorf("a server on the host starts in %q, %v", got, err)
	}
}

// TestServersNotNeeded checks that servers don't start if the policy refuses all their tools.
func TestServersNotNeeded(t *testing.T) {
	b, server := newServerBench(t, inSandbox("one"))
	b.opts.Policy.Tools = map[string]policy.Mode{"one/*": policy.ModeDeny}
	s := b.opened()
	if r, err := s.Call(t.Context(), "one/echo", json.RawMessage(`{}`)); err != nil || !r.IsError {
		t.Errorf("%+v, %v", r, err)
	}
	s.Close()
	if len(server.commands)+len(b.backend.Sandboxes) != 0 {
		t.Errorf("%d servers, %d sandboxes", len(server.commands), len(b.backend.Sandboxes))
	}
}

// TestRefusedServers checks that a turn starts only servers with a tool that the policy allows, names
// the others, and offers no search if there is none.
func TestRefusedServers(t *testing.T) {
	for name, tc := range map[string]struct {
		tools   map[string]policy.Mode
		refused []string
	}{
		"none allowed": {nil, []string{"one", "two"}},
		"one allowed":  {map[string]policy.Mode{"one/echo": policy.ModeAuto}, []string{"two"}},
		"both allowed": {map[string]policy.Mode{"one/echo": policy.ModeAuto, "two__*": policy.ModeAuto}, nil},
	} {
		b, server := newServerBench(t, inSandbox("one"), inSandbox("two"))
		p, err := policy.Preset("ci")
		if err != nil {
			t.Fatal(err)
		}
		p.Tools = tc.tools
		b.opts.Policy = p
		b.opts.Profiles = []loop.Profile{{Model: player(t, "  - calls: [{tool: search_tools, input: {query: servers}}]\n  - text: Done.\n")}}
		_, records := b.run(t.Context())
		var refused []string
		for _, w := range of[record.Warning](t, records) {
			if words := strings.Fields(w.Message); strings.Contains(w.Message, "is not started, because the policy refuses all of its tools") {
				refused = append(refused, words[2])
			}
		}
		offered := slices.ContainsFunc(of[record.SessionCreated](t, records)[0].Tools, func(o record.OfferedTool) bool { return o.Name == tools.NameSearchTools })
		if !slices.Equal(refused, tc.refused) || len(server.commands) != 2-len(tc.refused) || offered != (len(tc.refused) < 2) {
			t.Errorf("%s: refused %q, started %d, search offered %t", name, refused, len(server.commands), offered)
		}
	}
}

// TestServerStartsAgain checks that a server starts again after it or its sandbox ended, and that
// neither ends the session.
func TestServerStartsAgain(t *testing.T) {
	b, server := newServerBench(t, inSandbox("one"))
	s := b.opened()
	call := func(servers int) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			r, err := s.Call(t.Context(), "one/echo", json.RawMessage(`{"text":"x"}`))
			if err != nil {
				t.Fatal(err)
			}
			server.mu.Lock()
			started := len(server.commands)
			server.mu.Unlock()
			if !r.IsError && started == servers {
				return
			}
		}
		t.Fatalf("no call to server %d succeeds", servers)
	}
	call(1)
	server.mu.Lock()
	close(server.crash)
	server.mu.Unlock()
	call(2) // the first may answer until it has ended
	b.backend.Sandboxes[0].End(errors.Join(sandbox.ErrLost, &limits.ExceededError{Kind: limits.KindMemory}))
	call(3)
	r := s.Close()
	if r.ExitStatus != OutcomeDone || len(b.backend.Sandboxes) != 2 || len(server.commands) != 3 {
		t.Errorf("status %d, %d sandboxes, %d servers", r.ExitStatus, len(b.backend.Sandboxes), len(server.commands))
	}
	if stopped := of[record.MCPServerStopped](t, b.records(r)); len(stopped) != 3 || !strings.Contains(stopped[0].Cause, "exit code 3") {
		t.Errorf("stopped %+v", stopped)
	}
}

// TestServerWithoutIdentity checks that if all commands share one user, a server with variables,
// secrets or rules is refused, and another one is not.
func TestServerWithoutIdentity(t *testing.T) {
	withEnv, withKeys := inSandbox("env"), inSandbox("keys")
	withEnv.Env = []string{"TOKEN=value"}
	r, err := rule.ParseEgress("https://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	withKeys.Egress.Secrets = []secret.Secret{{Name: "KEY", Value: "0123456789", To: []rule.Rule{r}}}
	for name, one := range map[string]MCPServer{"env": withEnv, "keys": withKeys, "plain": inSandbox("plain")} {
		b, server := newServerBench(t, one)
		b.backend.Identities = 1
		s := b.opened()
		result, err := s.Call(t.Context(), tools.Name(name+"/echo"), json.RawMessage(`{"text":"x"}`))
		if err != nil || result.IsError == (name == "plain") {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
		report := s.Close()
		records := b.records(report)
		failed := of[record.MCPServerFailed](t, records)
		if name == "plain" {
			if len(server.commands) != 1 || server.commands[0].Identity != 0 || len(failed) != 0 || !slices.ContainsFunc(of[record.Warning](t, records), func(w record.Warning) bool { return strings.Contains(w.Message, "agent's user") }) {
				t.Errorf("%s: %+v, failed %+v", name, server.commands, failed)
			}
			continue
		}
		if len(server.commands) != 0 || len(failed) != 1 || !failed[0].GivenUp || !strings.Contains(failed[0].Cause, "share one user") {
			t.Errorf("%s: %d servers, failed %+v", name, len(server.commands), failed)
		}
	}
}

// TestServersFit checks that a session whose servers don't fit is not opened.
func TestServersFit(t *testing.T) {
	var servers []MCPServer
	for i := range sandbox.MaxIdentity + 1 {
		servers = append(servers, inSandbox(fmt.Sprintf("s%d", i)))
	}
	for _, tt := range []struct {
		name    string
		servers int
		memory  int64
		service bool
		want    *MCPFitError
	}{
		{"all", sandbox.MaxIdentity, 0, false, nil},
		{"identities", sandbox.MaxIdentity + 1, 0, false, &MCPFitError{Servers: 16, Fit: 15, Resource: "identities", Need: 16, Have: 15}},
		{"identities beside a service", sandbox.MaxIdentity, 0, true, &MCPFitError{Servers: 15, Fit: 14, Resource: "identities", Need: 15, Have: 14}},
		{"memory", 3, 3 << 30, false, &MCPFitError{Servers: 3, Fit: 2, Resource: "memory", Need: 2<<30 + 3*DefaultMCPMemory, Have: 3 << 30}},
	} {
		o := newBench(t, "").opts
		o.MCP = MCPOptions{Servers: servers[:tt.servers], MachineMemory: tt.memory}
		if tt.service {
			o.Service = &sandbox.Service{Args: []string{"serve"}}
		}
		_, err := assignServers(o)
		fit, _ := errors.AsType[*MCPFitError](err)
		if (fit == nil) != (tt.want == nil) || fit != nil && *fit != *tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	b, _ := newServerBench(t, servers...)
	_, err := Open(t.Context(), b.opts)
	if fault, ok := errors.AsType[Fault](err); !ok || fault.Kind != FaultSandboxStart || !strings.Contains(err.Error(), "15 of 16 MCP servers fit") {
		t.Errorf("open: %v", err)
	}
}

// TestServersOfContinuedSession checks that resumed sessions and forks start their servers again, and
// only when they need them.
func TestServersOfContinuedSession(t *testing.T) {
	b, server := newServerBench(t, inSandbox("one"))
	b = b.overlaid()
	call := func(s *Session) {
		t.Helper()
		for range 100 { // a server that lost its sandbox starts again
			r, err := s.Call(t.Context(), "one/echo", json.RawMessage(`{"text":"x"}`))
			if err != nil {
				t.Fatal(err)
			}
			if !r.IsError {
				return
			}
		}
		t.Error("no call succeeds")
	}
	s := b.opened()
	call(s)
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	before := len(b.backend.Sandboxes)
	call(forks[0])
	if n := len(b.backend.Sandboxes); n <= before {
		t.Errorf("%d sandboxes before the call of a fork, %d after", before, n)
	}
	if r := forks[0].Close(); len(of[record.MCPServerStarted](t, b.records(r))) != 1 {
		t.Error("the server of the fork did not start once")
	}
	call(s)
	s.Close()
	c := b.reopen("  - text: Unused.\n")
	c.opts.Profiles = nil
	s = c.opened()
	started := len(server.commands)
	call(s)
	if len(server.commands) != started+1 {
		t.Errorf("%d servers in the resumed session", len(server.commands)-started)
	}
	s.Close()
	c.backend.RequireGone(t)
}
