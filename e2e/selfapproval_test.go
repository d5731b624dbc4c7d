package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// knock sends a request to every address and says which answer.
const knock = `import socket, sys
request = open(sys.argv[1] if len(sys.argv) > 1 else 'request', 'rb').read()
for line in open('addresses'):
    kind, where = line.split()
    try:
        if kind == 'unix':
            s = socket.socket(socket.AF_UNIX); where = where.replace('@', '\0')
        elif kind == 'vsock':
            s = socket.socket(socket.AF_VSOCK); where = tuple(int(n) for n in where.split(':'))
        else:
            host, port = where.rsplit(':', 1)
            where = (host.strip('[]'), int(port))
            s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
        s.settimeout(3)
        s.connect(where)
        s.sendall(request)
        print('reached', line.strip(), s.recv(12))
    except Exception as e:
        print('no', line.strip(), e)
print('knocked')
`

// apiClient is a client of caisson serve with its token.
type apiClient struct {
	t      testing.TB
	base   string
	token  string
	socket string // "" is TCP
}

// http returns an HTTP client for the server.
func (c apiClient) http() *http.Client {
	if c.socket == "" {
		return http.DefaultClient
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.socket)
	}}}
}

// start starts a session, and turn sends it a message. Both return the id.
func (c apiClient) start(workspace string) string {
	c.t.Helper()
	return c.id(c.do(http.MethodPost, "/sessions", map[string]any{"workspace": workspace}, http.StatusCreated))
}

func (c apiClient) turn(session, message string) string {
	c.t.Helper()
	return c.id(c.do(http.MethodPost, "/sessions/"+session+"/turns", map[string]any{"message": message}, http.StatusAccepted))
}

func (c apiClient) id(text []byte) string {
	c.t.Helper()
	var made struct {
		ID   string `json:"id"`
		Turn string `json:"turn"`
	}
	if err := json.Unmarshal(text, &made); err != nil || made.ID+made.Turn == "" {
		c.t.Fatalf("no id in %s: %v", text, err)
	}
	return cmp.Or(made.ID, made.Turn)
}

// traceOf returns the complete records of a session so far.
func (m *machine) traceOf(t *testing.T, session string) records {
	t.Helper()
	text := readFile(t, filepath.Join(m.stateDir(), "sessions", session, "trace.jsonl"))
	return readRecords(t, string(text[:bytes.LastIndexByte(text, '\n')+1]))
}

// do makes a request and reads the answer, which must have the status.
func (c apiClient) do(method, path string, body any, status int) []byte {
	c.t.Helper()
	var in io.Reader
	if body != nil {
		in = strings.NewReader(mustJSON(c.t, body))
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, in)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http().Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		c.t.Fatalf("%s %s: %d, want %d: %s %v", method, path, resp.StatusCode, status, text, err)
	}
	return text
}

// asked has the fields of a confirmation that tests use.
type asked struct {
	ID   string `json:"id"`
	Turn string `json:"turn"`
	Name string `json:"tool_name"`
}

// waiting returns a session's waiting confirmations by tool.
func (c apiClient) waiting(session string) map[string]asked {
	c.t.Helper()
	list := parse[struct {
		Confirmations []asked `json:"confirmations"`
	}](c.t, c.do(http.MethodGet, "/sessions/"+session+"/confirmations", nil, http.StatusOK))
	byName := map[string]asked{}
	for _, a := range list.Confirmations {
		byName[a.Name] = a
	}
	return byName
}

func (c apiClient) answer(session string, a asked, decision string) {
	c.t.Helper()
	c.do(http.MethodPost, "/sessions/"+session+"/turns/"+a.Turn+"/confirmations/"+a.ID, map[string]string{"decision": decision}, http.StatusOK)
}

// TestNoSessionApprovesItself is acceptance case C34: a command that knows the
// token, the session, the turn and the question still can't answer its own
// session's confirmation, since it reaches the control interface by no address:
// loopback, the machine's own addresses and the engine's gateway, names that
// engines give, the unix socket, the hypervisor's; and the fetch tool does not
// either, though its allowlist has the address. The control is the same program on the
// host, which reaches the interface; and the test's own answer.
func TestNoSessionApprovesItself(t *testing.T) {
	t.Parallel() // most of it is the wait for addresses that don't answer
	python, err := exec.LookPath("python3")
	if err != nil {
		lacking(t, "", "needs python3")
	}
	onEachBackend(t, func(t *testing.T, backend string) {
		t.Parallel()
		m := newMachine(t)
		port := freePort(t)
		socket := filepath.Join(m.home, "control.sock")
		token := secret()
		m.env = append(m.env, "CONTROL_TOKEN="+token)
		local := fmt.Sprintf("http://127.0.0.1:%d", port)
		m.config(t, fmt.Sprintf("serve:\n  tokens: {test: {env: CONTROL_TOKEN, roles: [admin]}}\nfetch:\n  allow: [%q, %q]\n", local+"/", fmt.Sprintf("http://localhost:%d/", port)))
		m.write(t, "knock.py", knock)
		model := m.playing(t, []scriptCall{
			shell("python3 knock.py"), call("fetch", map[string]any{"url": local + "/sessions"}),
			call("fetch", map[string]any{"url": fmt.Sprintf("http://localhost:%d/sessions", port)}),
			call("write_file", map[string]any{"path": "self-approved", "content": "x"}),
		})[1]
		server := m.serve(t, "--policy", "default", "--backend", backend, "--model", model,
			"--listen", fmt.Sprintf("0.0.0.0:%d", port), "--allow-remote", "--listen", "unix:"+socket)

		c := apiClient{t: t, base: local, token: token}
		session := c.start(m.workspace)
		c.turn(session, "do it")
		var questions map[string]asked
		server.until(t, "both questions wait", func() bool {
			questions = c.waiting(session)
			return questions["shell"].ID != "" && questions["write_file"].ID != ""
		})

		// What the agent could at best have found out.
		write := questions["write_file"]
		body := `{"decision":"allow"}`
		request := fmt.Sprintf("POST /sessions/%s/turns/%s/confirmations/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			session, write.Turn, write.ID, token, len(body), body)
		m.write(t, "request", request)
		addresses := []string{fmt.Sprintf("tcp 127.0.0.1:%d", port), fmt.Sprintf("tcp localhost:%d", port), "unix " + socket}
		must := len(addresses)
		own, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range own {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
				addresses = append(addresses, fmt.Sprintf("tcp %s:%d", ip.IP, port))
				must++
			}
		}
		for _, name := range []string{"172.17.0.1", "host.docker.internal", "gateway.docker.internal", "host.containers.internal", "[::1]", "0.0.0.0"} {
			addresses = append(addresses, fmt.Sprintf("tcp %s:%d", name, port))
		}
		addresses = append(addresses, fmt.Sprintf("vsock 2:%d", port), fmt.Sprintf("vsock 1:%d", port), "unix @"+filepath.Base(socket))
		m.write(t, "addresses", strings.Join(addresses, "\n")+"\n")

		// The control, with a request that changes nothing.
		m.write(t, "harmless", "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		control := exec.CommandContext(t.Context(), python, "knock.py", "harmless")
		control.Dir = m.workspace
		seen, err := control.CombinedOutput()
		if n := strings.Count(string(seen), "reached tcp ") + strings.Count(string(seen), "reached unix "); err != nil || n < must {
			t.Fatalf("control: from the host %d of %d addresses are reached: %v\n%s", n, must, err, seen)
		}

		c.answer(session, questions["shell"], "allow")
		var all records
		server.until(t, "the command ends", func() bool {
			all = m.traceOf(t, session)
			return len(all.of("tool.completed")) > 0
		})
		if left := c.waiting(session); left["write_file"].ID != write.ID || len(left) != 1 {
			t.Errorf("after the command %+v wait, want the write alone", left)
		}
		if got := all.of("tool.confirmation_attempted"); len(got) != 0 || len(all.of("tool.confirmation_resolved")) != 1 {
			t.Errorf("somebody else answered: %d attempts, %d answers", len(got), len(all.of("tool.confirmation_resolved")))
		}
		c.answer(session, write, "deny")
		server.until(t, "the turn ends", func() bool {
			all = m.traceOf(t, session)
			return len(all.of("turn.completed")) == 1
		})
		results := all.results(t)
		if text := results[0].text(); strings.Contains(text, "reached") || !strings.Contains(text, "knocked") {
			t.Errorf("from inside:\n%s", text)
		}
		for _, r := range results[1:3] {
			if !r.IsError || !strings.Contains(r.text(), "public") || strings.Contains(r.text(), session) {
				t.Errorf("fetch gives %s, want a refusal of the address", r.text())
			}
		}
		if _, err := os.Lstat(filepath.Join(m.workspace, "self-approved")); err == nil {
			t.Error("the write was made though it was denied")
		}
		server.signal(t, syscall.SIGTERM)
		out := server.wait(t, time.Minute)
		if out.status != 0 {
			t.Errorf("serve ended with %d: %s", out.status, tail(out.stderr, 10))
		}
		m.wantNothingLeft(t, session)
	})
}

// TestSecretsStayOutOfTheAPI is acceptance case D49 for the HTTP API: with
// secrets in the server's surroundings and in the workspace, no answer, event,
// metric or log line has one of them, nor the token. Diffs hold what is in the
// files, byte for byte (docs/sandbox.md), and are left out. The control is what the
// session did, which is in all of them.
func TestSecretsStayOutOfTheAPI(t *testing.T) {
	backend := anyBackend(t)
	m := newMachine(t)
	canaries := map[string]string{}
	for _, name := range []string{"OPENAI_API_KEY", "GITHUB_TOKEN", "JUST_A_SETTING"} {
		canaries[name] = secret()
		m.env = append(m.env, name+"="+canaries[name])
	}
	key := canaries["OPENAI_API_KEY"]
	m.write(t, ".env", "OPENAI_API_KEY="+key+"\n")
	m.write(t, "notes.txt", "nothing yet\n")
	model := m.playing(t, []scriptCall{
		call("read_file", map[string]any{"path": ".env"}), shell("env; cat .env; cat /proc/*/environ | tr '\\0' '\\n'"),
		call("read_file", map[string]any{"path": filepath.Join(m.stateDir(), "serve.token")}), shell("cat " + filepath.Join(m.stateDir(), "serve.token")),
		call("patch_file", map[string]any{"path": "notes.txt", "old": "nothing", "new": "marker and " + key}),
	})[1]
	socket := filepath.Join(m.home, "s.sock")
	server := m.serve(t, "--policy", "ci", "--backend", backend, "--model", model, "--listen", "unix:"+socket, "--verbose")
	canaries["the token"] = m.writtenToken(t)
	c := apiClient{t: t, base: "http://localhost", token: canaries["the token"], socket: socket}
	session := c.start(m.workspace)
	c.turn(session, "do it")
	server.until(t, "the turn ends", func() bool { return len(m.traceOf(t, session).of("turn.completed")) == 1 })
	seen := map[string]string{}
	for _, path := range []string{"/sessions", "/sessions/" + session, "/sessions/" + session + "/confirmations", "/metrics", "/openapi.json", "/healthz"} {
		seen[path] = string(c.do(http.MethodGet, path, nil, http.StatusOK))
	}
	c.do(http.MethodDelete, "/sessions/"+session, nil, http.StatusOK)
	events := "/sessions/" + session + "/events" // of an ended session they end
	seen[events] = string(c.do(http.MethodGet, events, nil, http.StatusOK))
	server.signal(t, syscall.SIGTERM)
	out := server.wait(t, time.Minute)
	out.want(t, 0)
	seen["log"] = out.stderr
	for where, text := range seen {
		for of, value := range canaries {
			if strings.Contains(text, value) {
				t.Errorf("%s has %s", where, of)
			}
		}
	}
	for where, marker := range map[string]string{events: "marker and ", "/sessions": session, "log": "/sessions/{id}/events", "/metrics": "http_requests_total"} {
		if !strings.Contains(seen[where], marker) {
			t.Errorf("control: %s lacks %q: %.600s", where, marker, seen[where])
		}
	}
}
