package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
)

// cutBytes is how much of a stream of events comes through the proxy of the
// tests before it cuts the connection: a few records.
const cutBytes = 4 << 10

// cutter cuts a body when so much of it was read.
type cutter struct {
	io.ReadCloser
	left int
}

// Read fails in the middle of whatever is sent then.
func (c *cutter) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("cut")
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// cutting is a proxy in front of a server that cuts its streams, again and
// again. It gives the proxy's address.
func cutting(t *testing.T, base string) string {
	t.Helper()
	to, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if strings.HasSuffix(r.Request.URL.Path, "/events") {
				r.Body = &cutter{r.Body, cutBytes}
			}
			return nil
		},
		ErrorLog: zap.NewStdLog(zap.NewNop()), // what it cut
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// servingCut is serving behind a proxy that cuts its streams.
func (m *machine) servingCut(t *testing.T, backend, turns string) string {
	t.Helper()
	return cutting(t, m.serving(t, backend, turns))
}

// serve starts caisson serve, and waits until it listens.
func (m *machine) serve(t testing.TB, args ...string) *running {
	t.Helper()
	r := m.start(t, append([]string{"serve", "--root", m.workspace}, args...)...)
	r.until(t, "it listens", func() bool { return strings.Contains(r.stderr.String(), "caisson: backend ") })
	return r
}

// writtenToken returns the token that a server made and wrote for its user.
func (m *machine) writtenToken(t testing.TB) string {
	t.Helper()
	return strings.TrimSpace(string(readFile(t, filepath.Join(m.stateDir(), "serve.token"))))
}

// serving starts caisson serve on the machine's workspace, and returns its address.
// Its model plays turns.
func (m *machine) serving(t testing.TB, backend, turns string) string {
	t.Helper()
	script := filepath.Join(m.home, "script.yaml")
	writeFile(t, script, "version: 1\nname: test\nturns:\n"+turns, 0o644)
	m.env = append(m.env, "CONTROL_TOKEN="+secret())
	m.config(t, "serve:\n  max_streams: 128\n  tokens: {test: {env: CONTROL_TOKEN, roles: [admin]}}\n")
	port := freePort(t)
	r := m.serve(t, "--policy", "default", "--backend", backend, "--model", "replay/"+script, "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	t.Cleanup(func() {
		if err := r.process.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		r.wait(t, deadline).want(t, 0)
		if strings.Contains(r.stderr.String(), m.token()) {
			t.Error("the token is in the log")
		}
	})
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// token returns the token in the server's environment.
func (m *machine) token() string {
	for _, v := range m.env {
		if value, ok := strings.CutPrefix(v, "CONTROL_TOKEN="); ok {
			return value
		}
	}
	return ""
}

// TestCurl is the example of a client in a shell script, which a person could
// type: one call is allowed, one is denied, the stream is cut again and again.
func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		lacking(t, "", "needs curl")
	}
	m := newMachine(t)
	m.write(t, "a.txt", "old\n")
	base := m.servingCut(t, anyBackend(t), `
  - calls: [{tool: shell, input: {command: "cat a.txt; echo new > a.txt"}}]
  - calls: [{tool: shell, input: {command: "rm a.txt"}}]
  - text: All is done.
`)
	ctx, cancel := context.WithTimeoutCause(t.Context(), deadline, errors.New("the script does not end"))
	defer cancel()
	script := exec.CommandContext(ctx, "sh", filepath.Join("..", "examples", "http", "session.sh"), m.workspace, `say "hello" \o/`)
	script.Env = append(m.env, "CAISSON_URL="+base, "CAISSON_TOKEN="+m.token())
	script.Stdin = strings.NewReader("y\nn\ny\n")
	text, err := script.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	out := string(text)
	for _, want := range []string{"shell wants: cat a.txt; echo new > a.txt", "shell wants: rm a.txt", "All is done.", "-old\n+new\n", "applied"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if after, err := os.ReadFile(filepath.Join(m.workspace, "a.txt")); err != nil || string(after) != "new\n" {
		t.Errorf("a.txt is %q, %v", after, err)
	}
	next := 1
	for line := range strings.Lines(out) {
		number, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(number); err == nil {
			if n != next {
				t.Errorf("record %d came in the place of %d", n, next)
			}
			next++
		}
	}
	if next < 15 || t.Failed() {
		t.Errorf("%d records:\n%s", next-1, out)
	}
}

// generator is the program that makes a client from an OpenAPI document, and
// runtime what its clients link.
const (
	generator        = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
	generatorRuntime = "github.com/oapi-codegen/runtime@v1.6.0"
)

// TestGeneratedClient makes a client from the server's own document, and lets it
// do a session, its streams cut again and again: nobody here wrote it.
func TestGeneratedClient(t *testing.T) {
	m := newMachine(t)
	m.write(t, "keep.txt", "kept\n")
	base := m.servingCut(t, anyBackend(t), `
  - calls: [{tool: shell, input: {command: "echo made > made.txt"}}]
  - calls: [{tool: shell, input: {command: "rm keep.txt"}}]
  - text: All is done.
  - calls: [{tool: shell, input: {command: "echo more > more.txt"}}]
  - calls: [{tool: shell, input: {command: "sleep 600"}}]
  - text: Never said.
`)
	c := apiClient{t: t, base: base, token: m.token()}
	client := m.generatedClient(t, "httpclient", c.do(http.MethodGet, "/openapi.json", nil, http.StatusOK))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, errors.New("the client takes too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, client, base, m.workspace)
	cmd.Env = append(os.Environ(), "CONTROL_TOKEN="+m.token())
	text, err := cmd.CombinedOutput()
	out := string(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"decided shell allow again allow", "decided shell deny again deny", "asked 2 answered All is done.",
		"changed made.txt added", "changed more.txt added", "applied 2 applied", "refused ended",
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("it does not say %q", want)
		}
	}
	if !strings.Contains(out, "connections ") || strings.Count(out, "connections 1\n") > 1 {
		t.Error("its streams were not cut")
	}
	for name, want := range map[string]string{"made.txt": "made\n", "more.txt": "more\n", "keep.txt": "kept\n"} {
		if text, err := os.ReadFile(filepath.Join(m.workspace, name)); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// generatedClient makes a program of testdata/name and a client that is generated from an
// OpenAPI document. It returns the program's path.
func (m *machine) generatedClient(t *testing.T, name string, document []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))), os.Mkdir(filepath.Join(dir, "api"), 0o755),
		os.WriteFile(filepath.Join(dir, "openapi.json"), document, 0o644),
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+name+"\n\ngo 1.26\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, errors.New("the generator takes too long"))
	defer cancel()
	in := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off")
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	if text, err := in("go", "get", generatorRuntime); err != nil {
		lacking(t, "", "needs the module proxy: "+text)
	}
	if text, err := in("go", "run", generator, "-generate", "types,client,skip-prune", "-package", "api", "-o", "api/api.go", "openapi.json"); err != nil {
		t.Fatalf("generate: %v\n%s", err, text)
	}
	if text, err := in("go", "build", "-o", "client", "."); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	return filepath.Join(dir, "client")
}

// ofSandboxes is the heading in docs/http.md at which the commands for a session end
// and those for a sandbox without a model begin.
const ofSandboxes = "\n## Sandboxes without a model\n"

// TestHTTPDocumentation runs the commands of docs/http.md for a session, in their
// order, as a reader would.
func TestHTTPDocumentation(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		lacking(t, "", "needs curl")
	}
	m := newMachine(t)
	m.write(t, "project/a.txt", "old\n")
	script := filepath.Join(m.home, "script.yaml")
	turns := "version: 1\nname: test\nturns:\n  - calls: [{tool: shell, input: {command: \"echo new > a.txt\"}}]\n  - text: All is done.\n"
	writeFile(t, script, turns, 0o644)
	section, _, ok := strings.Cut(readDocument(t, "docs/http.md"), ofSandboxes)
	if !ok {
		t.Fatalf("docs/http.md has no section%s", ofSandboxes)
	}
	out := m.runDocument(t, section, "--model", "replay/"+script)
	for _, want := range []string{`"decision":"allow"`, `"kind":"turn.completed"`, `event: end`, `"answer":"All is done."`, `"conflicts":[]`, "-old\n+new\n", `"changes":"applied"`, `"state":"ended"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the commands don't show %s", want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(m.workspace, "project", "a.txt")); err != nil || string(text) != "new\n" {
		t.Errorf("a.txt is %q, %v", text, err)
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// TestSandboxDocumentation runs the commands of docs/http.md for a sandbox without a
// model.
func TestSandboxDocumentation(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		lacking(t, "", "needs curl")
	}
	m := newMachine(t)
	if err := errors.Join(os.Mkdir(filepath.Join(m.home, "fixtures"), 0o755), os.WriteFile(filepath.Join(m.home, "fixtures", "names.txt"), []byte("b\nd\n"), 0o644),
		os.WriteFile(filepath.Join(m.home, "more.txt"), []byte("c\na\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(readDocument(t, "docs/http.md"), ofSandboxes)
	const enabled = "serve: {sandboxes: {enabled: true}}"
	if !strings.Contains(section, enabled) {
		t.Errorf("the section lacks %s", enabled)
	}
	m.config(t, enabled)
	out := m.runDocument(t, section)
	for _, want := range []string{"event: exit", `"text":"a\nb\nc\nd\n"`, `"stdout":{"text":"text"`, "\nsorted.txt\n", `"state":"ended"`} {
		if !strings.Contains(out, want) || !ok {
			t.Errorf("the commands don't show %s:\n%s", want, out)
		}
	}
	if text, err := os.ReadFile(filepath.Join(m.home, "sorted.txt")); err != nil || string(text) != "a\nb\nc\nd\n" {
		t.Errorf("sorted.txt is %q, %v", text, err)
	}
}

// runDocument runs the shell commands of a text in the home directory, against a server on
// the workspace, and returns their output.
func (m *machine) runDocument(t *testing.T, text string, args ...string) string {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	m.serve(t, append([]string{"--backend", anyBackend(t), "--listen", address}, args...)...)
	commands := "set -eu\n"
	for _, block := range strings.Split(text, "```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		commands += block
	}
	commands = strings.ReplaceAll(commands, "127.0.0.1:8717", address)
	ctx, cancel := context.WithTimeoutCause(t.Context(), deadline, errors.New("the commands don't end"))
	defer cancel()
	sh := exec.CommandContext(ctx, "sh", "-c", commands)
	sh.Env, sh.Dir = m.env, m.home
	out, err := sh.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, commands, out)
	}
	return string(out)
}

// TestServeStops ends a server, by one signal, that has a session whose command
// ignores being asked to end, one that waits for an answer, and one that is idle:
// it ends with 0, and nothing of them is left.
func TestServeStops(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		r, sessions := m.serveBusy(t, backend, "1s")
		r.signal(t, os.Interrupt)
		m.wantStopped(t, r, sessions)
	})
}

// TestServeStopsAtOnce asks the same server twice, and the command has ten
// minutes to end after the first time: the second time it is not waited for.
func TestServeStopsAtOnce(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		r, sessions := m.serveBusy(t, backend, "10m")
		r.signal(t, syscall.SIGTERM)
		r.until(t, "it is ending what runs", func() bool { return strings.Contains(r.stderr.String(), "once more to kill it at once") })
		for _, session := range sessions[1:] { // those that nothing holds up
			r.until(t, "they have ended", func() bool { return strings.Contains(mustJSON(t, m.traceOf(t, session)), "session.ended") })
		}
		// The control: the first time is not enough for the one whose command goes on.
		if records := mustJSON(t, m.traceOf(t, sessions[0])); strings.Contains(records, "session.ended") || len(m.leftovers(t, sessions[0])) == 0 {
			t.Fatalf("the command did not hold up its session's end: %s", records)
		}
		r.signal(t, syscall.SIGTERM)
		m.wantStopped(t, r, sessions)
	})
}

// serveBusy starts a server with three sessions: one whose command ignores being
// asked to end, one that waits for an answer, and one that is idle.
func (m *machine) serveBusy(t *testing.T, backend, grace string) (r *running, sessions []string) {
	t.Helper()
	script := filepath.Join(m.home, "script.yaml")
	turns := "version: 1\nname: test\nturns:\n  - calls: [{tool: shell, input: {command: \"trap '' TERM; touch started; while :; do sleep 600; done\"}}]\n  - text: Never said.\n"
	writeFile(t, script, turns, 0o644)
	port := freePort(t)
	r = m.serve(t, "--backend", backend, "--grace", grace, "--model", "replay/"+script, "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	c := apiClient{t: t, base: fmt.Sprintf("http://127.0.0.1:%d", port), token: m.writtenToken(t)}
	busy, waits, idle := c.start(m.workspace), c.start(m.workspace), c.start(m.workspace)
	c.turn(busy, "go")
	c.turn(waits, "go")
	question := func(session string) (q asked) {
		r.until(t, "it asks", func() bool {
			q = c.waiting(session)["shell"]
			return q.ID != ""
		})
		return q
	}
	c.answer(busy, question(busy), "allow")
	question(waits)
	m.awaitFile(t, r, "started")
	return r, []string{busy, waits, idle}
}

// wantStopped waits for a server's end, which leaves nothing.
func (m *machine) wantStopped(t *testing.T, r *running, sessions []string) {
	t.Helper()
	r.wait(t, deadline).want(t, 0)
	for _, session := range sessions {
		records := m.traceOf(t, session)
		if last := records[len(records)-1]; last.Kind != "session.ended" {
			t.Errorf("the trace of %s ends with %s", session, last.Kind)
		}
		m.wantNothingLeft(t, session)
	}
	if _, err := os.Stat(filepath.Join(m.stateDir(), "serve.token")); !os.IsNotExist(err) {
		t.Errorf("the token is left: %v", err)
	}
}
