package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/mcp"
	"github.com/caisson-run/caisson/tools/policy"
)

// referenceServers are the official servers, by version.
const referenceServers = "2026.8.31"

// installServers installs the reference servers, once, and returns the directory of the
// packages. It is readable by all, as a server in the sandbox is another user.
func installServers(t testing.TB) string {
	t.Helper()
	for _, program := range []string{"npm", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	dir, err := installedServers()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var installedServers = sync.OnceValues(func() (string, error) {
	root, err := shared()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "mcp")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Minute, errors.New("npm install takes too long"))
	defer cancel()
	args := []string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}
	for _, name := range []string{"everything", "filesystem", "memory"} {
		args = append(args, "@modelcontextprotocol/server-"+name+"@"+referenceServers)
	}
	install := exec.CommandContext(ctx, "npm", args...)
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install: %w: %s", err, out)
	}
	return dir, nil
})

// serversDir is where the packages are in the sandbox.
const serversDir = "/srv/mcp"

// reference is a reference server in the sandbox.
func reference(name string, args ...string) runner.MCPServer {
	path := serversDir + "/node_modules/@modelcontextprotocol/server-" + name + "/dist/index.js"
	return runner.MCPServer{Server: mcp.Server{Name: name, Command: "node", Args: append([]string{path}, args...)}}
}

// serverSession is a session with servers, whose calls its policy allows.
type serverSession struct {
	*runner.Session
	t testing.TB
	// workspace is the directory of the files, dir that of the records.
	workspace, dir string
	closed         bool
	report         runner.Report
}

// openServers opens a session on a backend. change may change its options.
func openServers(t testing.TB, backend string, change func(o *runner.Options), servers ...runner.MCPServer) *serverSession {
	t.Helper()
	s := &serverSession{t: t}
	b := benchSandbox(t, backend)
	s.workspace = filepath.Join(filepath.Dir(b.state), "files")
	writeFile(t, filepath.Join(s.workspace, "a.txt"), "text of a\n", 0o644)
	protected := runner.Protected{State: b.state}
	w, err := runner.OpenWorkspace(s.workspace, protected)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	folder, err := sessiondir.Create(b.state, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	s.dir = folder.Path
	rules, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	rules.Tools = map[string]policy.Mode{}
	for _, one := range servers {
		rules.Tools[one.Name+"/*"] = policy.ModeAuto
	}
	o := runner.Options{
		Dir: folder, Task: "use servers", Workspace: w,
		SandboxOptions: runner.SandboxOptions{Backend: b.backend, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}},
		ModelOptions:   runner.ModelOptions{Budget: limits.Budget{Rounds: new(int64(50))}},
		PolicyOptions:  runner.PolicyOptions{Policy: rules},
		ToolOptions:    runner.ToolOptions{MCP: runner.MCPOptions{Servers: servers, HostEnv: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}}},
	}
	if slices.ContainsFunc(servers, func(one runner.MCPServer) bool { return strings.HasPrefix(strings.Join(one.Args, " "), serversDir) }) {
		o.Mounts, err = runner.OpenMounts([]runner.UserMount{{From: installServers(t), To: serversDir, ReadOnly: true}}, w, "", "", protected)
		if err != nil {
			t.Fatal(err)
		}
	}
	if change != nil {
		change(&o)
	}
	if s.Session, err = runner.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end() })
	return s
}

// end closes the session, once, and returns its report.
func (s *serverSession) end() runner.Report {
	if !s.closed {
		s.closed, s.report = true, s.Close()
	}
	return s.report
}

// call calls a tool, and returns the text of its result.
func (s *serverSession) call(name string, input string) (text string, failed bool) {
	s.t.Helper()
	r, err := s.Call(s.t.Context(), tools.Name(name), json.RawMessage(input))
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return boundary.ResultText(r.Content), r.IsError
}

// mustCall is call of a tool that must succeed.
func (s *serverSession) mustCall(name, input string) string {
	s.t.Helper()
	text, failed := s.call(name, input)
	if failed {
		s.t.Errorf("%s %s failed: %s", name, input, text)
	}
	return text
}

// payloads returns the payloads of one kind in the records of the session, which it ends.
func payloads[P record.Payload](s *serverSession) []P {
	s.t.Helper()
	return payloadsOf[P](s.t, readFile(s.t, filepath.Join(s.end().Dir, record.TraceFile)))
}

// everythingInputs are the arguments of the tools of the server everything that need some.
var everythingInputs = map[string]string{
	"echo": `{"message":"hello"}`, "get-sum": `{"a":2,"b":3}`, "trigger-long-running-operation": `{"duration":1,"steps":2}`,
	"get-structured-content": `{"location":"New York"}`, "get-annotated-message": `{"messageType":"success","includeImage":true}`,
	"get-resource-links": `{"count":2}`, "simulate-research-query": `{"topic":"caissons"}`, "get-resource-reference": `{"resourceType":"Text","resourceId":1}`,
	"gzip-file-as-resource": `{"name":"a.gz","data":"data:text/plain;base64,aGVsbG8=","outputType":"resource"}`,
}

// TestReferenceServers runs the official servers in a sandbox, from a scripted session, and
// calls every tool of one of them.
func TestReferenceServers(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		memory := reference("memory")
		memory.Env = []string{"MEMORY_FILE_PATH=" + sandbox.IdentityHome(3) + "/memory.json"}
		s := openServers(t, backend, func(o *runner.Options) {
			script := filepath.Join(t.TempDir(), "script.yaml")
			turns := `version: 1
name: test
turns:
  - calls: [{tool: search_tools, input: {query: "echo"}}]
  - calls: [{tool: load_tool, input: {name: "everything/echo"}}]
  - calls: [{tool: everything__echo, input: {message: "from the model"}}]
  - text: Done.
`
			writeFile(t, script, turns, 0o600)
			model, err := replay.Open(script, replay.Options{})
			if err != nil {
				t.Fatal(err)
			}
			o.Profiles = []loop.Profile{{Model: model}}
		}, reference("everything"), reference("filesystem", sandbox.WorkspaceDir), memory)
		turn, err := s.Start("echo something")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := turn.Wait(t.Context()); err != nil || r.Answer != "Done." {
			t.Fatalf("%+v, %v", r, err)
		}
		if text := s.mustCall("filesystem/read_text_file", `{"path":"/workspace/a.txt"}`); !strings.Contains(text, "text of a") {
			t.Errorf("filesystem: %s", text)
		}
		s.mustCall("memory/create_entities", `{"entities":[{"name":"ada","entityType":"person","observations":["counts"]}]}`)
		if text := s.mustCall("memory/read_graph", `{}`); !strings.Contains(text, "ada") {
			t.Errorf("memory: %s", text)
		}
		if text := s.mustCall("everything/get-sum", everythingInputs["get-sum"]); !strings.Contains(text, "5") {
			t.Errorf("get-sum: %s", text)
		}
		for _, name := range offeredTools(s, "everything") {
			input := everythingInputs[strings.TrimPrefix(string(name), "everything/")]
			if input == "" {
				input = "{}"
			}
			text, failed := s.call(string(name), input)
			if failed && !strings.Contains(text, "requires task augmentation") { // which clients may lack
				t.Errorf("%s %s failed: %s", name, input, text)
			}
		}
		started := payloads[record.MCPServerStarted](s)
		for _, p := range started {
			if p.Runs != "sandbox" || p.Identity == 0 || p.ToolCount == 0 {
				t.Errorf("%+v", p)
			}
			t.Logf("%s: %d tools, %d skipped %v, %d ms", p.Server, p.ToolCount, len(p.Skipped), p.Skipped, p.WallMS)
		}
		if failed := payloads[record.MCPServerFailed](s); len(started) != 3 || len(failed) > 0 {
			t.Errorf("%d started, failed %+v", len(started), failed)
		}
		var echoed bool
		for _, p := range payloads[record.ToolCompleted](s) {
			echoed = echoed || p.Name == "everything/echo"
		}
		if r := s.end(); !echoed || r.ExitStatus != 0 || len(r.Left) > 0 {
			t.Errorf("status %d, left %v, echoed %t", r.ExitStatus, r.Left, echoed)
		}
	})
}

// offeredTools returns the names of a server's tools, from the records so far.
func offeredTools(s *serverSession, server string) []tools.Name {
	s.t.Helper()
	var names []tools.Name
	for _, p := range payloadsOf[record.MCPServerStarted](s.t, readFile(s.t, filepath.Join(s.dir, record.TraceFile))) {
		if p.Server != server {
			continue
		}
		for _, tool := range p.Tools {
			names = append(names, tool.Name)
		}
	}
	if len(names) == 0 {
		s.t.Fatalf("no tools of %s", server)
	}
	return names
}

// TestFilesystemServerIsConfined checks that a server that may read everything in the
// sandbox doesn't see a file of the host. The control is the same server on the host.
func TestFilesystemServerIsConfined(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret.txt")
	writeFile(t, secret, "of the host\n", 0o644)
	onEachBackend(t, func(t *testing.T, backend string) {
		inside, outside := reference("filesystem", "/"), reference("filesystem", "/")
		outside.Name, outside.OnHost = "control", true
		outside.Args[0] = filepath.Join(installServers(t), strings.TrimPrefix(outside.Args[0], serversDir))
		s := openServers(t, backend, nil, inside, outside)
		input := fmt.Sprintf(`{"path":%q}`, secret)
		if text := s.mustCall("control/read_text_file", input); !strings.Contains(text, "of the host") {
			t.Errorf("control: %s", text)
		}
		s.mustCall("filesystem/read_text_file", `{"path":"/workspace/a.txt"}`)
		if text, failed := s.call("filesystem/read_text_file", input); !failed || strings.Contains(text, "of the host") {
			t.Errorf("the server read a file of the host: %s", text)
		}
		if text, failed := s.call("filesystem/write_file", `{"path":"/workspace/b.txt","content":"x"}`); !failed {
			t.Errorf("a server of another identity wrote to the workspace: %s", text)
		}
	})
}

// pythonServer speaks the protocol with the standard library alone. Its tools tell what it
// reaches by a proxy, and what it has in its environment.
const pythonServer = `
import json, os, sys, urllib.request
def answer(call):
    name, args = call["name"], call.get("arguments") or {}
    if name == "token":
        return os.environ.get("TOKEN", "none")
    if name == "variables":
        return " ".join(sorted(os.environ))
    try:
        by = [urllib.request.ProxyHandler({"http": args["proxy"]})] if "proxy" in args else []
        return "got " + urllib.request.build_opener(*by).open(args["url"], timeout=20).read().decode()
    except Exception as e:
        return "failed: %s" % e
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "small", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": n, "description": n, "inputSchema": {"type": "object", "properties": {"url": {"type": "string"}}}} for n in ("get", "token", "variables")]}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": answer(m["params"])}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
`

// python is a server of pythonServer in the sandbox.
func python(name string) runner.MCPServer {
	return runner.MCPServer{Server: mcp.Server{Name: name, Command: "/usr/bin/python3", Args: []string{"-c", pythonServer}}}
}

// serverRules returns the network of a server that may send requests to these addresses of
// this machine.
func serverRules(t *testing.T, urls ...string) runner.EgressOptions {
	t.Helper()
	o := runner.EgressOptions{Policy: &rule.Policy{}, Private: map[string][]netip.Prefix{rule.HostName: {netip.MustParsePrefix("127.0.0.1/32")}}}
	for _, u := range urls {
		r, err := rule.ParseEgress(u)
		if err != nil {
			t.Fatal(err)
		}
		o.Policy.Allow = append(o.Policy.Allow, r)
	}
	return o
}

// TestServerNetwork checks that a server reaches what its rules allow and nothing else,
// that the agent's commands get nothing of it by the server's proxy, and that records tell
// both apart.
func TestServerNetwork(t *testing.T) {
	t.Parallel()
	serve := func(text string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		t.Cleanup(s.Close)
		_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
		return "http://" + rule.HostName + ":" + port + "/"
	}
	ofServer, ofAgent := serve("for the server"), serve("for the agent")
	onEachBackend(t, func(t *testing.T, backend string) {
		for _, agentHasNetwork := range []bool{true, false} {
			one := python("one")
			one.Egress = serverRules(t, ofServer)
			s := openServers(t, backend, func(o *runner.Options) {
				if agentHasNetwork {
					o.Egress = serverRules(t, ofAgent)
				}
			}, one, python("none"))
			get := func(server, url string) string { return s.mustCall(server+"/get", fmt.Sprintf(`{"url":%q}`, url)) }
			if got := get("one", ofServer); !strings.Contains(got, "for the server") {
				t.Errorf("the server's host: %s", got)
			}
			for server, url := range map[string]string{"one": ofAgent, "none": ofServer} {
				if got := get(server, url); !strings.Contains(got, "failed") {
					t.Errorf("server %s reached %s: %s", server, url, got)
				}
			}
			// The agent's command tries the proxies of all commands.
			script := fmt.Sprintf(`for n in 1 2 3 4 5 6; do curl -s -m 10 -x http://127.80.0.$n:61080 %s; echo; done; curl -s -m 10 %s`, ofServer, ofAgent)
			text, _ := s.call("shell", fmt.Sprintf(`{"command":%q}`, script))
			if strings.Contains(text, "for the server") || strings.Contains(text, "for the agent") != agentHasNetwork {
				t.Errorf("the agent's command, network %t: %s", agentHasNetwork, text)
			}
			opened, denied := map[string]int{}, map[string]int{}
			for _, p := range payloads[record.NetworkOpened](s) {
				opened[p.Server]++
			}
			for _, p := range payloads[record.NetworkDenied](s) {
				denied[p.Server+" "+p.Reason]++
			}
			if opened["one"] != 1 || opened["none"] != 0 || (opened[""] > 0) != agentHasNetwork || denied["one not_allowed"] == 0 || denied[" identity"] == 0 {
				t.Errorf("network of the agent %t: opened %v, denied %v", agentHasNetwork, opened, denied)
			}
		}
	})
}

// TestServersAskNoModels checks that servers of a session with a bridge can't use it: not by
// their own network, nor by the proxy of the agent's commands, nor if they have none. The
// control is such a command.
func TestServersAskNoModels(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "the answer"}}}
		address := serveModel(t, mock)
		base, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		one := python("one")
		one.Egress = serverRules(t, strings.Replace(address, "127.0.0.1", rule.HostName, 1)+"/")
		s := openServers(t, backend, func(o *runner.Options) {
			o.Bridge = &bridge.Options{
				Profiles: []bridge.Profile{{Name: "fast", Protocol: bridge.Anthropic, BaseURL: base, Model: "model-1", Header: http.Header{"X-Api-Key": {modelKey}}}},
				Models:   map[string]string{"*": "fast"},
			}
		}, one, python("none"))
		const models = "http://" + bridge.Host + "/v1/models"
		command := `curl -sS -m 10 -H 'anthropic-version: 1' ` + models + `; curl -sS -m 10 http://` + bridge.Host + `/v1/messages -d '{"model":"m","max_tokens":50,"messages":[]}';
for n in 1 2 3 4 5 6; do curl -sS -m 10 -H 'anthropic-version: 1' -x http://127.80.0.$n:61080 ` + models + `; done`
		control, _ := s.call("shell", fmt.Sprintf(`{"command":%s}`, mustJSON(t, command)))
		if strings.Count(control, `"model-1","type":"model"`) < 2 || !strings.Contains(control, "the answer") || strings.Contains(control, modelKey) {
			t.Fatalf("control: a command of the agent got %s", control)
		}
		for _, server := range []string{"one", "none"} {
			tries := []string{fmt.Sprintf(`{"url":%q}`, models)}
			for n := range 6 {
				tries = append(tries, fmt.Sprintf(`{"url":%q,"proxy":"http://127.80.0.%d:61080"}`, models, n+1))
			}
			for _, input := range tries {
				if got := s.mustCall(server+"/get", input); !strings.Contains(got, "failed") {
					t.Errorf("server %s, %s: %s", server, input, got)
				}
			}
		}
		if got := s.mustCall("one/get", fmt.Sprintf(`{"url":%q}`, strings.Replace(address, "127.0.0.1", rule.HostName, 1)+"/v1/models")); !strings.Contains(got, "HTTP Error 400") {
			t.Errorf("control: the server's own host: %s", got)
		}
		denied := map[string]int{}
		for _, p := range payloads[record.NetworkDenied](s) {
			denied[p.Server+" "+p.Reason]++
		}
		if denied["one identity"] == 0 || denied["none identity"]+denied[" identity"] == 0 {
			t.Errorf("denied %v", denied)
		}
		if n := len(mock.Requests()); n != 2 { // those of the controls
			t.Errorf("the model got %d requests: %+v", n, mock.Requests())
		}
	})
}

// TestServerSecretIsKept checks that the agent's commands can't read what a server has in
// its environment. The control is a process of the agent's own.
func TestServerSecretIsKept(t *testing.T) {
	const token = "token-of-the-server"
	onEachBackend(t, func(t *testing.T, backend string) {
		one := python("one")
		one.Env = []string{"TOKEN=" + token}
		s := openServers(t, backend, func(o *runner.Options) { o.Env = []string{"OF_AGENT=1"} }, one)
		if got := s.mustCall("one/token", "{}"); !strings.Contains(got, token) {
			t.Errorf("the server has %s", got)
		}
		if got := s.mustCall("one/variables", "{}"); strings.Contains(got, "OF_AGENT") || !strings.Contains(got, "PATH") || !strings.Contains(got, "HOME") {
			t.Errorf("the server has the variables %s", got)
		}
		read := `cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -ac "^TOKEN=token-of" ; true`
		if text, _ := s.call("shell", fmt.Sprintf(`{"command":%q}`, read)); !strings.Contains(text, "0") || strings.Contains(text, "1\n") {
			t.Errorf("the agent's command found the variable: %s", text)
		}
		control := `TOKEN=token-of-mine sleep 30 & sleep 0.3; ` + read
		if text, _ := s.call("shell", fmt.Sprintf(`{"command":%q}`, control)); !strings.Contains(text, "1") {
			t.Errorf("control: %s", text)
		}
		text, err := os.ReadFile(filepath.Join(s.end().Dir, record.TraceFile))
		if err != nil || bytes.Contains(text, []byte("TOKEN="+token)) {
			t.Errorf("the records have the value, %v", err)
		}
	})
}

// TestServerBudget checks that a server that forks without end is ended by itself, and that
// the agent's commands and another server go on, and the other way round.
func TestServerBudget(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		bomb := python("bomb")
		bomb.Processes = 20
		bomb.Args = []string{"-c", strings.Replace(pythonServer, `return os.environ.get("TOKEN", "none")`, `[os.fork() or __import__("time").sleep(1000) for _ in range(100)]; return ""`, 1)}
		s := openServers(t, backend, nil, bomb, python("one"))
		s.mustCall("one/token", "{}")
		s.mustCall("bomb/variables", "{}")
		_, _ = s.call("bomb/token", "{}")
		s.mustCall("one/token", "{}")
		if text := s.mustCall("shell", `{"command":"echo works"}`); !strings.Contains(text, "works") {
			t.Error(text)
		}
		// The agent's own bomb takes its place for a while, not the server's life.
		_, _ = s.call("shell", `{"command":"for i in $(seq 1 300); do sleep 30 & done; wait","timeout_seconds":3}`)
		s.mustCall("one/token", "{}")
		stopped := payloads[record.MCPServerStopped](s)
		if !slices.ContainsFunc(stopped, func(p record.MCPServerStopped) bool { return p.Server == "bomb" && strings.Contains(p.Cause, "pids") }) {
			t.Errorf("stopped %+v", stopped)
		}
		if slices.ContainsFunc(stopped, func(p record.MCPServerStopped) bool { return p.Server == "one" && p.Cause != "" }) {
			t.Errorf("another server ended: %+v", stopped)
		}
	})
}

// TestServerHome checks that a server which fills its home leaves the others theirs, and
// that programs run there: npx and uvx install what they start below the home.
func TestServerHome(t *testing.T) {
	t.Parallel()
	home := strings.Replace(pythonServer, `return os.environ.get("TOKEN", "none")`, `
        try:
            with open(os.environ["HOME"] + "/fill", "wb") as f:
                for _ in range(int(args["url"])):
                    f.write(bytes(1 << 20))
            with open(os.environ["HOME"] + "/program", "w") as f:
                f.write("#!/bin/sh\necho runs")
            os.chmod(os.environ["HOME"] + "/program", 0o700)
            return os.popen("$HOME/program 2>&1").read()
        except OSError as e:
            return str(e)`, 1)
	onEachBackend(t, func(t *testing.T, backend string) {
		one, two := python("one"), python("two")
		one.Args, two.Args = []string{"-c", home}, []string{"-c", home}
		s := openServers(t, backend, nil, one, two)
		if text := s.mustCall("one/token", `{"url":"4096"}`); !strings.Contains(text, "No space") {
			t.Errorf("a home has no bound: %s", text)
		}
		if text := s.mustCall("two/token", `{"url":"64"}`); !strings.Contains(text, "runs") {
			t.Errorf("another server after that: %s", text)
		}
		if text, _ := s.call("shell", `{"command":"df /run | tail -1; ls /run/identity/* 2>&1; false"}`); strings.Contains(text, "100%") || strings.Contains(text, "fill") || strings.Contains(text, "No space") {
			t.Errorf("the agent has %s", text)
		}
	})
}

// npxServer is a server that npx installs. It can change its own program.
const npxServer = `#!/usr/bin/env node
const fs = require("fs")
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const m = JSON.parse(line)
  if (!("id" in m)) return
  if (m.method === "tools/call" && m.params.name === "forge") fs.appendFileSync(__filename, "// forged\n")
  const result = {
    "initialize": {protocolVersion: m.params?.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: "small", version: "1"}},
    "tools/list": {tools: ["forge", "look"].map(name => ({name, inputSchema: {type: "object"}}))},
    "tools/call": {content: [{type: "text", text: /^\/\/ forged/m.test(fs.readFileSync(__filename)) ? "forged" : "clean"}]},
  }[m.method]
  console.log(JSON.stringify({jsonrpc: "2.0", id: m.id, result: result ?? {}}))
})
`

// npxRegistry is a registry of npm with one package, small, that counts its downloads.
type npxRegistry struct {
	origin    string
	version   atomic.Int64
	downloads atomic.Int64
}

func (r *npxRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	version := fmt.Sprintf("1.%d.0", r.version.Load())
	switch req.URL.Path {
	case "/small":
		_, _ = fmt.Fprintf(w, `{"name":"small","dist-tags":{"latest":%q},"versions":{%[1]q:{"name":"small","version":%[1]q,"bin":{"small":"index.js"},"dist":{"tarball":"%ssmall/-/small-%s.tgz"}}}}`,
			version, r.origin, version)
	case "/small/-/small-" + version + ".tgz":
		r.downloads.Add(1)
		_, _ = w.Write(packTarball(map[string]string{"package.json": fmt.Sprintf(`{"name":"small","version":%q,"bin":"index.js"}`, version), "index.js": npxServer}))
	default:
		http.NotFound(w, req)
	}
}

// openInstalled opens a session with a server on a workspace, with the caches below a
// directory.
func openInstalled(t *testing.T, backend, state, workspace string, use caches.Use, server runner.MCPServer) *serverSession {
	t.Helper()
	return openServers(t, backend, func(o *runner.Options) {
		w, err := runner.OpenWorkspace(workspace, runner.Protected{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		o.Workspace, o.Caches = w, runner.CacheOptions{Store: caches.NewStore(state), Use: use}
	}, server)
}

// TestInstalledServer checks that later sessions on a workspace have what npx installed for
// a server, until there is a new version, and that no call has a part in it: neither the
// agent's commands, nor a tool of the server that changes its program, for which the same
// session is the control.
func TestInstalledServer(t *testing.T) {
	t.Parallel()
	backend := anyBackend(t)
	if !isInUsr(t, "npx") {
		t.Skip("needs npx below /usr")
	}
	r := &npxRegistry{}
	registry := httptest.NewServer(r)
	defer registry.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(registry.URL, "http://"), ":")
	r.origin = "http://" + rule.HostName + ":" + port + "/"
	small := runner.MCPServer{Server: mcp.Server{Name: "small", Command: "npx", Args: []string{"-y", "small"}, Env: []string{"npm_config_registry=" + r.origin, "npm_config_fetch_retries=0"}}}
	small.Egress = serverRules(t, r.origin)
	state, mine, other := t.TempDir(), t.TempDir(), t.TempDir()
	for _, tt := range []struct {
		name, dir          string
		use                caches.Use
		version, downloads int64
	}{
		{"frozen keeps nothing", mine, caches.Frozen, 0, 1},
		{"none keeps nothing", mine, caches.None, 0, 2},
		{"the first session", mine, "", 0, 3},
		{"a later session", mine, "", 0, 3},
		{"frozen", mine, caches.Frozen, 0, 3},
		{"none", mine, caches.None, 0, 4},
		{"another workspace", other, "", 0, 5},
		{"a new version", mine, "", 1, 6},
		{"after the new version", mine, "", 1, 7},
		{"the new version is kept", mine, "", 1, 7},
		{"other variables", mine, "", 1, 8},
		{"an old archive", mine, "", 1, 9},
	} {
		r.version.Store(tt.version)
		small := small
		switch tt.name {
		case "other variables", "an old archive":
			small.Env = append(slices.Clone(small.Env), "npm_config_loglevel=error")
		}
		if tt.name == "an old archive" {
			archives, err := filepath.Glob(filepath.Join(state, "caches", "*", "small.*.tar"))
			if err != nil || len(archives) == 0 {
				t.Fatalf("there are no archives: %v", err)
			}
			old := time.Now().Add(-8 * 24 * time.Hour)
			for _, name := range archives {
				if err := os.Chtimes(name, old, old); err != nil {
					t.Fatal(err)
				}
			}
		}
		s := openInstalled(t, backend, state, tt.dir, tt.use, small)
		if got := s.mustCall("small/look", "{}"); !strings.Contains(got, "clean") {
			t.Errorf("%s: the server is %s", tt.name, got)
		}
		forge := fmt.Sprintf(`echo '// forged' | tee -a %s/.npm/_npx/*/node_modules/small/index.js %s/caches/*/small.*.tar`, sandbox.IdentityHome(1), state)
		text, _ := s.call("shell", fmt.Sprintf(`{"command":%q}`, forge))
		if got := s.mustCall("small/look", "{}"); !strings.Contains(got, "clean") {
			t.Errorf("%s: after the agent's command the server is %s: %s", tt.name, got, text)
		}
		s.mustCall("small/forge", "{}")
		if got := s.mustCall("small/look", "{}"); !strings.Contains(got, "forged") {
			t.Errorf("%s: control: the server is %s", tt.name, got)
		}
		s.end()
		if got := r.downloads.Load(); got != tt.downloads {
			t.Errorf("%s: %d downloads, want %d", tt.name, got, tt.downloads)
		}
	}
}

// TestInstalledServerNeedsRules checks that a server without rules, as those of a workspace
// are, gets nothing that another session left, nor one that runs in the workspace. The same
// server with rules, in its home, is the control.
func TestInstalledServerNeedsRules(t *testing.T) {
	t.Parallel()
	const program = `#!/bin/sh
test -e ~/.npm/_npx && export TOKEN=restored
mkdir -p ~/.npm/_npx/a/node_modules
exec /usr/bin/python3 -c "$1"
`
	rules := serverRules(t, "http://"+rule.HostName+":1/")
	onEachBackend(t, func(t *testing.T, backend string) {
		state, dir := t.TempDir(), t.TempDir()
		writeFile(t, filepath.Join(dir, "npx"), program, 0o755)
		for _, tt := range []struct {
			name, command string
			egress        runner.EgressOptions
			cwd           string
			want          string
		}{
			{"without rules", "npx", runner.EgressOptions{}, "", "none"},
			{"with cwd", "npx", rules, sandbox.WorkspaceDir, "none"},
			{"program of the workspace", sandbox.WorkspaceDir + "/npx", rules, "", "none"},
			{"program of the workspace, again", sandbox.WorkspaceDir + "/npx", rules, "", "none"},
			{"with rules", "npx", rules, "", "none"},
			{"control", "npx", rules, "", "restored"},
			{"with cwd, later", "npx", rules, sandbox.WorkspaceDir, "none"},
			{"without rules, later", "npx", runner.EgressOptions{}, "", "none"},
		} {
			one := runner.MCPServer{Server: mcp.Server{Name: "one", Command: tt.command, Args: []string{pythonServer}, Dir: tt.cwd}, Egress: tt.egress}
			one.Env = []string{"PATH=" + sandbox.WorkspaceDir + ":/usr/bin:/bin"} // the user's own doing
			s := openInstalled(t, backend, state, dir, "", one)
			if got := s.mustCall("one/token", "{}"); !strings.Contains(got, tt.want) {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
			s.end()
		}
	})
}

// BenchmarkServerCall compares a call of a tool of a server in the sandbox with the same
// one of a server on the host, in one run.
func BenchmarkServerCall(b *testing.B) {
	for _, backend := range backendNames {
		b.Run(backend, func(b *testing.B) {
			inside, outside := python("inside"), python("outside")
			outside.OnHost = true
			s := openServers(b, backend, nil, inside, outside)
			times := map[string][]time.Duration{}
			for range b.N {
				for _, name := range []string{"inside", "outside"} {
					begun := time.Now()
					s.mustCall(name+"/token", "{}")
					times[name] = append(times[name], time.Since(begun))
				}
			}
			median := func(name string) time.Duration {
				slices.Sort(times[name])
				return times[name][len(times[name])/2]
			}
			b.ReportMetric(float64(median("inside").Microseconds()), "inside-µs")
			b.ReportMetric(float64(median("outside").Microseconds()), "outside-µs")
			b.ReportMetric(float64(median("inside"))/float64(median("outside")), "ratio")
		})
	}
}
