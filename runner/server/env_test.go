package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const (
	aliceToken = "alice-0123456789abcdef0123456789"
	bobToken   = "bob-0123456789abcdef012345678901"
)

// testEnv is a server on a TCP port, with a fake sandbox and a replayed model.
type testEnv struct {
	t       *testing.T
	root    string // all folders of the test
	state   string
	dir     string // the workspace
	backend *fakeBackend
	server  *Server
	base    string
	stop    func() error
	// turns is the model's script, in YAML; policy the preset.
	turns, policy string
	// opts, if not nil, changes the options of sessions.
	opts func(*runner.Options)
}

// newTestEnv starts a server whose model says turns.
func newTestEnv(t *testing.T, turns string, change ...func(*Options)) *testEnv {
	t.Helper()
	root := t.TempDir()
	w := &testEnv{t: t, root: root, state: filepath.Join(root, "state"), dir: filepath.Join(root, "workspaces", "one"), turns: turns, policy: "default", backend: newFakeBackend()}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.serve(change...)
	return w
}

// serve starts a server on the environment's state.
func (w *testEnv) serve(change ...func(*Options)) {
	w.t.Helper()
	o := w.options()
	for _, c := range change {
		c(&o)
	}
	var err error
	if w.server, err = New(o); err != nil {
		w.t.Fatal(err)
	}
	l, err := Listen(w.t.Context(), "127.0.0.1:0", false)
	if err != nil {
		w.t.Fatal(err)
	}
	w.base = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(ctx, l) }()
	stopped := false
	w.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel(&runner.Interrupted{Signal: 15})
		return <-done
	}
	w.t.Cleanup(func() {
		if err := w.stop(); err != nil {
			w.t.Errorf("stop: %v", err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		w.backend.RequireGone(w.t)
	})
}

func (w *testEnv) openStreams() (n int) {
	w.t.Helper()
	_, after, _ := strings.Cut(w.get("/metrics").requireStatus(w.t, 200).text, "\ncaisson_event_streams ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// awaitNoStreams waits until the server counts no stream. A client may know of the end of its
// own a moment earlier.
func (w *testEnv) awaitNoStreams() {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); w.openStreams() != 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%d streams are open", w.openStreams())
		}
	}
}

func (w *testEnv) options() Options {
	return Options{
		StateDir: w.state, MaxSessions: 80, MaxStreams: 256,
		Tokens:  []Token{{"alice", aliceToken, []Role{RoleAdmin}}, {"bob", bobToken, []Role{RoleAdmin}}},
		Prepare: w.prepare, Resume: w.resume, PrepareSandbox: w.prepareSandbox, OpenWorkspace: w.openWorkspace,
	}
}

func (w *testEnv) openWorkspace(path string) (*runner.Workspace, error) {
	if !strings.HasPrefix(path, filepath.Join(w.root, "workspaces")+"/") {
		return nil, &PrepareError{Code: "workspace", Problem: record.Problem{Cause: "it is below no root", Hint: "Name another."}}
	}
	return runner.OpenWorkspace(path, runner.Protected{State: w.state})
}

// prepare does the same as cmd/caisson, with a fake sandbox and a replayed
// model.
func (w *testEnv) prepare(_ context.Context, in NewSession) (runner.Options, func(), error) {
	return prepare(w.state, w.turns, w.policy, in, w.backend, w.openWorkspace, w.opts)
}

// resume is prepare for a resumed session, in bind mode.
func (w *testEnv) resume(ctx context.Context, session string, _ ResumeSession) (runner.Options, func(), error) {
	dir, err := sessiondir.Reopen(w.state, session, nil)
	if err != nil {
		return runner.Options{}, nil, err
	}
	o, done, err := w.prepare(ctx, NewSession{Workspace: w.dir, Mode: "bind"})
	if err != nil {
		return o, nil, errors.Join(err, dir.Close())
	}
	o.Dir = dir
	return o, func() {
		done()
		_ = dir.Close()
	}, nil
}

func prepare(state, turns, rules string, in NewSession, backend sandbox.Backend, open func(string) (*runner.Workspace, error), change func(*runner.Options)) (runner.Options, func(), error) {
	ws, err := open(in.Workspace)
	if err != nil {
		return runner.Options{}, nil, err
	}
	folder, err := sessiondir.Create(state, nil)
	if err != nil {
		return runner.Options{}, nil, errors.Join(err, ws.Close())
	}
	script := filepath.Join(folder.Path, "script.yaml")
	if err := os.WriteFile(script, []byte("version: 1\nname: test\nturns:\n"+turns), 0o600); err != nil {
		return runner.Options{}, nil, err
	}
	model, err := replay.Open(script, replay.Options{})
	if err != nil {
		return runner.Options{}, nil, err
	}
	preset, err := policy.Preset(rules)
	if err != nil {
		return runner.Options{}, nil, err
	}
	o := runner.Options{
		Dir: folder, Workspace: ws, Version: "test",
		SandboxOptions: runner.SandboxOptions{
			Backend: backend, Choice: record.BackendChoice{Asked: "fake", Chosen: "fake"},
			Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Mode: sandbox.WorkspaceMode(in.Mode),
		},
		ModelOptions:  runner.ModelOptions{Profiles: []loop.Profile{{Model: model}}, Budget: limits.Budget{Rounds: new(int64(40))}},
		PolicyOptions: runner.PolicyOptions{Policy: preset},
	}
	if change != nil {
		change(&o)
	}
	return o, func() {
		_ = folder.Close()
		_ = ws.Close()
	}, nil
}

// prepareSandbox does the same as cmd/caisson, with a fake sandbox.
func (w *testEnv) prepareSandbox(_ context.Context, in NewSandbox) (runner.Options, func(), error) {
	folder, err := sessiondir.Create(w.state, nil)
	if err != nil {
		return runner.Options{}, nil, err
	}
	var ws *runner.Workspace
	if in.Workspace == "" {
		ws, err = runner.MakeWorkspace(folder)
	} else {
		ws, err = w.openWorkspace(in.Workspace)
	}
	if err != nil {
		return runner.Options{}, nil, errors.Join(err, folder.Close())
	}
	o := runner.Options{
		Dir: folder, Workspace: ws, Version: "test",
		SandboxOptions: runner.SandboxOptions{
			Backend: w.backend, Choice: record.BackendChoice{Asked: "fake", Chosen: "fake"},
			Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Mode: sandbox.WorkspaceMode(in.Mode),
		},
	}
	if w.opts != nil {
		w.opts(&o)
	}
	return o, func() {
		if err := errors.Join(ws.Close(), sessiondir.RemoveWorkspace(w.state, folder.Session), folder.Close()); err != nil {
			w.t.Errorf("end a sandbox: %v", err)
		}
	}, nil
}

type answer struct {
	status int
	header http.Header
	text   string
}

func (a answer) decodeInto(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.text), v); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.text, err)
	}
}

func (a answer) requireStatus(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("got %d, want %d: %s", a.status, status, a.text)
	}
	return a
}

// requireProblem returns the problem in an answer, which must have the status
// and the code.
func (a answer) requireProblem(t *testing.T, status int, code string) Problem {
	t.Helper()
	var p Problem
	a.requireStatus(t, status).decodeInto(t, &p)
	if p.Code != code || p.Status != status || p.Type != "urn:caisson:problem:"+code || p.Detail == "" || a.header.Get("Content-Type") != problemType {
		t.Errorf("got the problem %+v as %s, want code %s", p, a.header.Get("Content-Type"), code)
	}
	return p
}

// do sends a request with a token, or without one if it is "".
func (w *testEnv) do(token, method, path, body string, header ...string) answer {
	w.t.Helper()
	a, err := send(w.t.Context(), http.DefaultClient, w.base, token, method, path, body, header...)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func send(ctx context.Context, c *http.Client, base, token, method, path, body string, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text)}, err
}

func (w *testEnv) get(path string) answer { w.t.Helper(); return w.do(aliceToken, "GET", path, "") }
func (w *testEnv) post(path, body string) answer {
	w.t.Helper()
	return w.do(aliceToken, "POST", path, body)
}

func (w *testEnv) startSession(mode string) string {
	w.t.Helper()
	var s Session
	w.post("/sessions", fmt.Sprintf(`{"workspace":%q,"mode":%q}`, w.dir, mode)).requireStatus(w.t, 201).decodeInto(w.t, &s)
	return s.ID
}

// startTurn sends a message to a session and returns the turn.
func (w *testEnv) startTurn(session, message string) string {
	w.t.Helper()
	var s Started
	w.post("/sessions/"+session+"/turns", fmt.Sprintf(`{"message":%q}`, message)).requireStatus(w.t, 202).decodeInto(w.t, &s)
	return s.Turn
}

type event struct {
	id, name, data string
}

func (e event) record(t *testing.T) record.Record {
	t.Helper()
	r, err := record.Decode([]byte(e.data))
	if err != nil {
		t.Fatalf("event %q: %v", e.data, err)
	}
	return r
}

type follower struct {
	t    *testing.T
	body io.ReadCloser
	text *bytes.Buffer
	buf  []byte
}

// followEvents opens a stream after a record, by the header or by a query.
func (w *testEnv) followEvents(session, after string) *follower {
	w.t.Helper()
	query := ""
	if strings.HasPrefix(after, "?") {
		query, after = after, ""
	}
	req, err := http.NewRequestWithContext(w.t.Context(), "GET", w.base+"/sessions/"+session+"/events"+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+aliceToken)
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.StatusCode != 200 {
		w.t.Fatalf("stream: %s", res.Status)
	}
	return w.newFollower(res)
}

func (w *testEnv) newFollower(res *http.Response) *follower {
	f := &follower{t: w.t, body: res.Body, text: &bytes.Buffer{}, buf: make([]byte, 8<<10)}
	w.t.Cleanup(f.close)
	return f
}

func (f *follower) close() { _ = f.body.Close() }

// nextEvent returns the next event; ok is false at the end of the stream.
func (f *follower) nextEvent() (e event, ok bool) {
	f.t.Helper()
	for {
		if i := bytes.Index(f.text.Bytes(), []byte("\n\n")); i >= 0 {
			e := event{}
			for line := range strings.Lines(string(f.text.Next(i + 2))) {
				field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
				switch field {
				case "id":
					e.id = value
				case "event":
					e.name = value
				case "data":
					e.data = value
				}
			}
			if e.data != "" {
				return e, true
			}
			continue // a comment
		}
		n, err := f.body.Read(f.buf)
		f.text.Write(f.buf[:n])
		if err != nil && n == 0 {
			return event{}, false
		}
	}
}

// until reads up to the first record of a kind.
func (f *follower) until(kind record.Kind) record.Record {
	f.t.Helper()
	for {
		e, ok := f.nextEvent()
		if !ok {
			f.t.Fatalf("the stream ended before %s", kind)
		}
		if e.id == "" {
			continue
		}
		if r := e.record(f.t); r.Kind == kind {
			return r
		}
	}
}

func (f *follower) rest() []event {
	f.t.Helper()
	var all []event
	for {
		e, ok := f.nextEvent()
		if !ok {
			return all
		}
		all = append(all, e)
	}
}

func (w *testEnv) trace(session string) []record.Record {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(sessiondir.Path(w.state, session), record.TraceFile))
	if err != nil {
		w.t.Fatal(err)
	}
	tr, err := record.ReadTrace(bytes.NewReader(text))
	if err != nil {
		w.t.Fatal(err)
	}
	return tr.Records
}

func count(records []record.Record, kind record.Kind) int {
	n := 0
	for _, r := range records {
		if r.Kind == kind {
			n++
		}
	}
	return n
}

// waitForTurn follows the stream until a turn has ended, and returns the turn.
func (w *testEnv) waitForTurn(session, turn string) Turn {
	w.t.Helper()
	f := w.followEvents(session, "")
	defer f.close()
	for {
		e, ok := f.nextEvent()
		if !ok {
			w.t.Fatal("the stream ended before the turn")
		}
		if e.id == "" {
			continue
		}
		if r := e.record(w.t); r.Turn == turn && (r.Kind == record.KindTurnCompleted || r.Kind == record.KindTurnCancelled) {
			break
		}
	}
	var t Turn
	for { // the record comes a moment before the turn is over
		w.get("/sessions/"+session+"/turns/"+turn).requireStatus(w.t, 200).decodeInto(w.t, &t)
		if t.State != TurnRunning {
			return t
		}
	}
}

func (w *testEnv) waitForConfirmation(session string, f *follower) Confirmation {
	w.t.Helper()
	f.until(record.KindConfirmationRequested)
	for {
		var list ConfirmationList
		w.get("/sessions/"+session+"/confirmations").requireStatus(w.t, 200).decodeInto(w.t, &list)
		if len(list.Confirmations) > 0 {
			return list.Confirmations[0]
		}
	}
}
