package otel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
)

// clientParent is the span of a client of the server.
const clientParent = "00-11111111111111111111111111111111-2222222222222222-01"

// script2 has two turns. The second command of the first one waits until it is killed,
// where the file "wait" exists.
const script2 = `
version: 1
name: scripted-model
turns:
  - calls: [{tool: shell, input: {command: "touch first"}}]
  - calls: [{tool: shell, input: {command: "touch second; test ! -e wait || sleep 300"}}]
  - text: Done.
  - text: Done again.
`

// turnLines are the spans of a turn with the commands of script2, below the span above.
func turnLines(above string) []string {
	return []string{
		above + " > invoke_agent caisson",
		"invoke_agent caisson > chat scripted-model", "invoke_agent caisson > chat scripted-model", "invoke_agent caisson > chat scripted-model",
		"invoke_agent caisson > execute_tool shell", "invoke_agent caisson > execute_tool shell", "invoke_agent caisson > start_sandbox",
	}
}

// noParent is the span above one that begins a trace.
const noParent = ""

// checkFace checks the tree of the spans that a collector received, each span against the
// conventions, and that all of them are of one session, whose ID it returns.
func checkFace(t *testing.T, got *received, want []string) string {
	t.Helper()
	got.mu.Lock()
	defer got.mu.Unlock()
	slices.Sort(want)
	if lines := treeOf(t, got); !slices.Equal(lines, want) {
		t.Errorf("spans\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	c, session := readConventions(t), ""
	for _, s := range got.spans {
		for _, fault := range c.checkSpan(s, false) {
			t.Error(fault)
		}
		id := text(s, "gen_ai.conversation.id")
		if session == "" {
			session = id
		}
		if !strings.HasPrefix(id, "ses_") || id != session {
			t.Errorf("%s is of the session %q, others of %q", s.Name(), id, session)
		}
	}
	for _, name := range []string{"gen_ai.client.operation.duration", "gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"} {
		if m, ok := got.metrics[name]; !ok {
			t.Errorf("the metric %s is missing", name)
		} else if faults := c.checkMetric(m); len(faults) > 0 {
			t.Error(faults)
		}
	}
	return session
}

// spansNamed returns the spans of a name, in the order of their beginnings.
func (r *received) spansNamed(name string) (out []ptrace.Span) {
	for _, s := range r.spans {
		if s.Name() == name {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b ptrace.Span) int { return int(a.StartTimestamp()) - int(b.StartTimestamp()) })
	return out
}

// TestTelemetryOfAChat has a conversation of two messages: two turns of one session, both
// below the caller's span.
func TestTelemetryOfAChat(t *testing.T) {
	endpoint, got := startCollector(t)
	p := newProgram(t, endpoint, script2)
	var stderr strings.Builder
	cmd := p.command(&stderr, "chat", "--plain", "--mode", "bind", "--model", p.model)
	cmd.Stdin = strings.NewReader("do it\nagain\n")
	out, err := cmd.Output()
	p.check(err, string(out)+stderr.String())
	above := parent[36:52]
	checkFace(t, got, append(turnLines(above), above+" > invoke_agent caisson", "invoke_agent caisson > chat scripted-model"))
}

// TestTelemetryOfAnotherModel chooses another model in a conversation: the next turn's
// span has it.
func TestTelemetryOfAnotherModel(t *testing.T) {
	endpoint, got := startCollector(t)
	p := newProgram(t, endpoint, "version: 1\nname: one\nturns: [{text: First.}]\n")
	other := filepath.Join(p.dir, "other.yaml")
	if err := os.WriteFile(other, []byte("version: 1\nname: two\nturns: [{text: unused}, {text: Second.}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd := p.command(&stderr, "chat", "--plain", "--mode", "bind", "--model", p.model)
	cmd.Stdin = strings.NewReader("hello\n/model replay/" + other + "\nagain\n")
	out, err := cmd.Output()
	p.check(err, string(out)+stderr.String())
	var models []string
	for _, s := range append(got.spansNamed("invoke_agent caisson"), append(got.spansNamed("chat one"), got.spansNamed("chat two")...)...) {
		models = append(models, text(s, "gen_ai.request.model"))
	}
	if want := []string{"one", "two", "one", "two"}; !slices.Equal(models, want) {
		t.Errorf("models of the spans: %q, want %q\n%s%s", models, want, out, &stderr)
	}
}

// server is a running `caisson serve`.
type server struct {
	*program

	cmd    *exec.Cmd
	base   string
	stderr *lockedBuffer
}

// lockedBuffer is a buffer that a process writes to while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (p *program) serve() *server {
	p.t.Helper()
	address := freeAddress(p.t)
	s := &server{program: p, base: "http://" + address, stderr: &lockedBuffer{}}
	s.cmd = p.command(s.stderr, "serve", "--root", p.workspace, "--policy", "ci", "--model", p.model, "--listen", address)
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.eventually("the server listens", func() bool {
		res, err := http.Get(s.base + "/healthz") //nolint:noctx // it answers at once or not at all
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return s
}

// do sends a request and returns the answer, which must have the status want.
func (s *server) do(method, path, body string, want int) (out struct {
	ID, Turn, State string
	Unfinished      bool
}) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	secret, err := os.ReadFile(filepath.Join(s.dir, ".local/state/caisson/serve.token"))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(secret)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", clientParent)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		s.t.Fatalf("%s %s: %s, %v\n%s", method, path, res.Status, err, data)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		s.t.Fatalf("%v\n%s", err, data)
	}
	return out
}

// turn starts a turn and waits until it has ended.
func (s *server) turn(session, body string) {
	s.t.Helper()
	path := "/sessions/" + session + "/turns"
	turn := s.do(http.MethodPost, path, body, http.StatusAccepted).Turn
	s.eventually("the turn ends", func() bool { return s.do(http.MethodGet, path+"/"+turn, "", http.StatusOK).State == "ended" })
}

// stop ends the server, and so flushes its telemetry.
func (s *server) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}
	s.check(s.cmd.Wait(), s.stderr.String())
}

func (p *program) eventually(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("after two minutes not: %s", what)
		}
	}
}

// TestTelemetryOfAServer has a session of two turns over HTTP: each turn has a trace of its
// own, with a link to the client's span and without the server's own parent.
func TestTelemetryOfAServer(t *testing.T) {
	endpoint, got := startCollector(t)
	p := newProgram(t, endpoint, script2)
	s := p.serve()
	session := s.do(http.MethodPost, "/sessions", fmt.Sprintf(`{"workspace":%q}`, p.workspace), http.StatusCreated).ID
	s.turn(session, `{"message":"do it"}`)
	s.turn(session, `{"message":"again"}`)
	s.stop()
	if id := checkFace(t, got, append(turnLines(noParent), noParent+" > invoke_agent caisson", "invoke_agent caisson > chat scripted-model")); id != session {
		t.Errorf("the spans are of %q, the session is %q", id, session)
	}
	turns := got.spansNamed("invoke_agent caisson")
	for _, s := range turns {
		if s.Links().Len() != 1 || s.Links().At(0).TraceID().String() != clientParent[3:35] || s.Links().At(0).SpanID().String() != clientParent[36:52] {
			t.Errorf("%d links, want one to the client's span", s.Links().Len())
		}
	}
	if len(turns) == 2 && turns[0].TraceID() == turns[1].TraceID() {
		t.Error("both turns are of one trace")
	}
}

// TestTelemetryOfAResumedSession kills a run with SIGKILL in its second command and goes on
// in each way there is: the turn has a span again, with the model call that is left below
// it, and the session is the same.
func TestTelemetryOfAResumedSession(t *testing.T) {
	for name, goOn := range map[string]func(p *program, session string, stderr io.Writer) (above string){
		"run": func(p *program, session string, stderr io.Writer) string {
			out, err := p.command(stderr, "run", "--json", "--policy", "ci", "--resume", session).Output()
			p.check(err, string(out)+fmt.Sprint(stderr))
			return parent[36:52]
		},
		"chat": func(p *program, session string, stderr io.Writer) string {
			out, err := p.command(stderr, "chat", "--plain", "--mode", "bind", "--resume", session).Output()
			p.check(err, string(out)+fmt.Sprint(stderr))
			return parent[36:52]
		},
		"serve": func(p *program, session string, _ io.Writer) string {
			s := p.serve()
			if !s.do(http.MethodPost, "/sessions/"+session+"/resume", "{}", http.StatusOK).Unfinished {
				p.t.Error("the turn isn't unfinished")
			}
			s.turn(session, `{"continue":true}`)
			s.stop()
			return noParent
		},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint, got := startCollector(t)
			p := newProgram(t, endpoint, script2)
			if err := os.WriteFile(filepath.Join(p.workspace, "wait"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			stderr := &lockedBuffer{}
			killed := p.command(stderr, "run", "--json", "--policy", "ci", "--model", p.model, "do it")
			if err := killed.Start(); err != nil {
				t.Fatal(err)
			}
			gone := make(chan struct{})
			go func() {
				_ = killed.Wait()
				close(gone)
			}()
			p.eventually("the second command", func() bool {
				select {
				case <-gone:
					p.check(fmt.Errorf("it ended: %s", killed.ProcessState), stderr.String())
				default:
				}
				_, err := os.Stat(filepath.Join(p.workspace, "second"))
				return err == nil
			})
			if err := killed.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-gone
			got.mu.Lock()
			got.spans = nil // those that the killed process had exported
			got.mu.Unlock()
			sessions, err := filepath.Glob(filepath.Join(p.dir, ".local/state/caisson/sessions/ses_*"))
			if err != nil || len(sessions) != 1 {
				t.Fatalf("sessions %q, %v", sessions, err)
			}
			session := filepath.Base(sessions[0])
			above := goOn(p, session, stderr)
			// The call that was under way has a span without a length.
			want := []string{
				above + " > invoke_agent caisson", "invoke_agent caisson > chat scripted-model",
				"invoke_agent caisson > execute_tool shell cancelled", "invoke_agent caisson > start_sandbox",
			}
			if id := checkFace(t, got, want); id != session {
				t.Errorf("the spans are of %q, the session is %q", id, session)
			}
		})
	}
}
