package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server/internal/outputlog"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// execBody requests one command of the fake sandbox.
func execBody(verb string) string { return fmt.Sprintf(`{"argv":[%q]}`, verb) }

func (w *testEnv) runExec(id, body string, header ...string) ExecResult {
	w.t.Helper()
	var r ExecResult
	w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", body, append(header, "Accept", "application/json")...).requireStatus(w.t, 200).decodeInto(w.t, &r)
	return r
}

func (o Output) bytes(t *testing.T) []byte {
	t.Helper()
	if o.Base64 == "" {
		return []byte(o.Text)
	}
	b, err := base64.StdEncoding.DecodeString(o.Base64)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (w *testEnv) followExec(ctx context.Context, id, body string, header ...string) *follower {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", w.base+"/sandboxes/"+id+"/exec", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+aliceToken)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("%d %s", res.StatusCode, res.Header)
	}
	return w.newFollower(res)
}

// execOutput collects a stream of events.
type execOutput struct {
	id             string
	stdout, stderr []byte
	last           string // the id of the last event that has one
	end            *ExecEnd
	problem        *Problem
}

// add adds one event, and reports whether it was the last.
func (o *execOutput) add(t *testing.T, e event) bool {
	t.Helper()
	var to any
	var piece Output
	var started ExecStarted
	switch e.name {
	case "started":
		to = &started
	case "stdout", "stderr":
		to, o.last = &piece, e.id
	case "exit":
		o.end = &ExecEnd{}
		to = o.end
	case "error":
		o.problem = &Problem{}
		to = o.problem
	default:
		t.Fatalf("event %+v", e)
	}
	if err := json.Unmarshal([]byte(e.data), to); err != nil {
		t.Fatal(err)
	}
	switch e.name {
	case "started":
		o.id = started.Exec
	case "stdout":
		o.stdout = append(o.stdout, piece.bytes(t)...)
	case "stderr":
		o.stderr = append(o.stderr, piece.bytes(t)...)
	}
	return o.end != nil || o.problem != nil
}

func (f *follower) readExec() (o execOutput) {
	f.t.Helper()
	defer f.body.Close()
	for {
		e, ok := f.nextEvent()
		if !ok {
			f.t.Errorf("the events end after %+v", o)
			return o
		}
		if o.add(f.t, e) {
			return o
		}
	}
}

// waitFor reads events until standard output has a text.
func (f *follower) waitFor(o *execOutput, text string) {
	f.t.Helper()
	for !bytes.Contains(o.stdout, []byte(text)) {
		if e, ok := f.nextEvent(); !ok || o.add(f.t, e) {
			f.t.Fatalf("it ended: %+v", o)
		}
	}
}

// TestExec runs commands with input, variables and arbitrary bytes, which both
// kinds of answers return exactly.
func TestExec(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSandbox(`{}`).ID
	r := w.runExec(id, execBody("say hello"))
	if r.Output.Stdout.Text != "hello\n" || r.Status != 0 || r.Stdout != (StreamSize{Bytes: 6}) || !strings.HasPrefix(r.Exec, "exe_") {
		t.Errorf("got %+v", r)
	}
	if r := w.runExec(id, execBody("nothing of the kind")); r.Status != 127 {
		t.Errorf("got %+v", r)
	}
	if r := w.runExec(id, `{"argv":["env"],"env":["A=1=\n","b_2="]}`); r.Output.Stdout.Text != "A=1=\n\nb_2=" {
		t.Errorf("got %+v", r)
	}
	for _, text := range []string{"", "plain", "a\u202eb\u0000\u001b[31m<&>é", "\xff\xfe", "half \xe2\x82", "\xe2\x82\xac", "\xf0\x9f\x98", "a\x80b", "\xc3"} {
		in := base64.StdEncoding.EncodeToString([]byte(text))
		body := fmt.Sprintf(`{"argv":["cat"],"stdin_base64":%q}`, in)
		if got := w.runExec(id, body).Output.Stdout.bytes(t); string(got) != text {
			t.Errorf("%q comes back as %q", text, got)
		}
		if got := w.followExec(t.Context(), id, body).readExec(); string(got.stdout) != text || got.end == nil {
			t.Errorf("%q comes as %q", text, got.stdout)
		}
		got := w.followExec(t.Context(), id, execBody("bytes "+hex.EncodeToString([]byte(text)))).readExec()
		if string(got.stdout) != text || string(got.stderr) != text || got.end.Stderr.Bytes != int64(len(text)) {
			t.Errorf("%q comes byte by byte as %q and %q", text, got.stdout, got.stderr)
		}
	}
	if r := w.runExec(id, `{"argv":["cat"],"stdin":"text"}`); r.Output.Stdout.Text != "text" {
		t.Errorf("got %+v", r)
	}
	// Commands without a key keep nothing, and records tell who ran which
	// command.
	if files, err := filepath.Glob(filepath.Join(sessiondir.Path(w.state, id), sessiondir.OutputDir, "*")); err != nil || len(files) > 0 {
		t.Errorf("kept %q, %v", files, err)
	}
	w.do(bobToken, "POST", "/sandboxes/"+id+"/exec", execBody("say bob"), "Accept", "application/json").requireStatus(t, 200)
	w.do(aliceToken, "DELETE", "/sandboxes/"+id, "").requireStatus(t, 200)
	var first, last record.UserCommandStarted
	for _, rec := range w.trace(id) {
		if rec.Kind == record.KindUserCommandStarted {
			last = payload[record.UserCommandStarted](t, rec)
			if last.ExecID == r.Exec {
				first = last
			}
		}
	}
	if first.Argv[0] != "say hello" || first.Client != "http:alice" || last.Client != "http:bob" {
		t.Errorf("recorded %+v and %+v", first, last)
	}
	w.post("/sandboxes/"+id+"/exec", execBody("say more")).requireProblem(t, 410, "ended")
}

// Hostile and wrong requests are refused with a reason, and run nothing.
func TestExecIsRefused(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSandbox(`{}`).ID
	huge := strings.Repeat("x", maxBodyBytes)
	for _, tt := range []struct {
		body, header, code string
	}{
		{`{}`, "", "invalid"},
		{`{"argv":[]}`, "", "invalid"},
		{`{"argv":null}`, "", "invalid"},
		{`{"argv":["a"],"argv":["b"]}`, "", "malformed"},
		{`{"argv":["a"],"Argv":["b"]}`, "", "malformed"},
		{`{"argv":["a"],"env":["A"]}`, "", "invalid"},
		{`{"argv":["a"],"shell":true}`, "", "invalid"},
		{`{"argv":["` + huge + `"]}`, "", "too_large"},
		{`{"argv":["a"],"timeout_seconds":-1}`, "", "invalid"},
		{`{"argv":["a"],"timeout_seconds":31536000}`, "", "refused"},
		{`{"argv":["a"],"env":["A B=1"]}`, "", "invalid"},
		{`{"argv":["a"],"env":["=1"]}`, "", "invalid"},
		{`{"argv":["a"],"stdin":"a","stdin_base64":"YQ=="}`, "", "invalid"},
		{`{"argv":["a"],"stdin_base64":"?"}`, "", "invalid"},
		{`{"argv":["a"]}`, "Last-Event-ID: 1-1", "event_id"},
		{`{"argv":["a"]}`, "Last-Event-ID: -1-1", "event_id"},
		{`{"argv":["a"]}`, "Last-Event-ID: 0", "event_id"},
		{`{"argv":["a"]}`, "Last-Event-ID: 99999999999999999999-0", "event_id"},
		{`{"argv":["a"]}`, "Idempotency-Key: " + strings.Repeat("k", 129), "invalid"},
		{`{"argv":["a"]}`, "Idempotency-Key: a b", "invalid"},
		{`{"argv":["a"]}`, "Idempotency-Key: \xff", "invalid"},
	} {
		var header []string
		if name, value, ok := strings.Cut(tt.header, ": "); ok {
			header = []string{name, value}
		}
		a := w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", tt.body, header...)
		if a.status/100 != 4 || !strings.Contains(a.text, `"code":"`+tt.code+`"`) {
			t.Errorf("%.60s with %.40q: %d %.200s, want %s", tt.body, tt.header, a.status, a.text, tt.code)
		}
	}
	if ran := w.backend.commands(); len(ran) > 0 {
		t.Errorf("ran %q", ran)
	}
	for _, exec := range []string{"exe_00000000000000000000000000", "..", "x"} {
		if a := w.do(aliceToken, "DELETE", "/sandboxes/"+id+"/exec/"+exec, ""); a.status != 404 {
			t.Errorf("DELETE %s: %d %s", exec, a.status, a.text)
		}
	}
}

// The same key joins the command while it runs and gets its result later, only
// for its own client. Many requests at once run it once.
func TestExecKeys(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	w.backend.gate = make(chan struct{})
	id := w.startSandbox(`{}`).ID
	body, key := execBody("gate"), []string{"Idempotency-Key", "one"}
	const clients = 40
	outputs := make(chan execOutput, clients)
	for i := range clients {
		go func() {
			if i%2 == 0 {
				outputs <- w.followExec(t.Context(), id, body, key...).readExec()
				return
			}
			r := w.runExec(id, body, key...)
			outputs <- execOutput{id: r.Exec, stdout: r.Output.Stdout.bytes(t), stderr: r.Output.Stderr.bytes(t), end: &r.ExecEnd}
		}()
	}
	w.backend.gate <- struct{}{}
	var first execOutput
	for i := range clients {
		o := <-outputs
		if i == 0 {
			first = o
		}
		if o.id != first.id || string(o.stdout) != "before\nafter\n" || string(o.stderr) != "done\n" || o.end == nil || o.end.Status != 3 {
			t.Errorf("client %d got %+v", i, o)
		}
	}
	if ran := w.backend.commands(); len(ran) != 1 {
		t.Errorf("ran %q", ran)
	}
	// Later, and after an event.
	if r := w.runExec(id, body, key...); r.Exec != first.id || r.Output.Stdout.Text != "before\nafter\n" {
		t.Errorf("later: %+v", r)
	}
	if o := w.followExec(t.Context(), id, body, append(key, "Last-Event-ID", "7-5")...).readExec(); string(o.stdout) != "after\n" || len(o.stderr) > 0 || o.end.Status != 3 {
		t.Errorf("behind an event: %+v", o)
	}
	w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", body, append(key, "Last-Event-ID", "14-0")...).requireProblem(t, 400, "event_id")
	// Another request of this client, and the same request of another client.
	w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", `{"argv":["gate"],"dir":"/workspace"}`, key...).requireProblem(t, 422, "key_reused")
	go func() { w.backend.gate <- struct{}{} }()
	var other ExecResult
	w.do(bobToken, "POST", "/sandboxes/"+id+"/exec", body, append(key, "Accept", "application/json")...).requireStatus(t, 200).decodeInto(t, &other)
	if other.Exec == first.id {
		t.Error("a key joins the command of another client")
	}
	if ran := w.backend.commands(); len(ran) != 2 {
		t.Errorf("ran %q", ran)
	}
}

// If its client is lost, a command with a key goes on, and one without is
// cancelled.
func TestExecLosesItsClient(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	w.backend.gate = make(chan struct{})
	id := w.startSandbox(`{}`).ID
	for _, kind := range []string{"events", "result"} {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		if kind == "events" {
			var o execOutput
			f := w.followExec(ctx, id, execBody("gate"))
			f.waitFor(&o, "before\n")
			leave()
			f.body.Close()
		} else {
			var request sync.WaitGroup
			request.Go(func() {
				_, err := send(ctx, http.DefaultClient, w.base, aliceToken, "POST", "/sandboxes/"+id+"/exec", execBody("gate"), "Accept", "application/json")
				if !errors.Is(err, context.Canceled) {
					t.Errorf("it ended with %v", err)
				}
			})
			w.waitForRunning(id, 1)
			leave()
			request.Wait()
		}
		w.waitForRunning(id, 0) // no one lets it go on
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	key := []string{"Idempotency-Key", "stays"}
	var o execOutput
	f := w.followExec(ctx, id, execBody("gate"), key...)
	f.waitFor(&o, "before\n")
	leave()
	f.body.Close()
	joined := w.followExec(t.Context(), id, execBody("gate"), append(key, "Last-Event-ID", o.last)...)
	w.backend.gate <- struct{}{}
	rest := joined.readExec()
	if got := string(o.stdout) + string(rest.stdout); got != "before\nafter\n" || rest.id != o.id || rest.end.Cancelled {
		t.Errorf("got %q, then %+v", got, rest)
	}
	var cancelled int
	for _, rec := range w.trace(id) {
		if rec.Kind != record.KindUserCommandEnded {
			continue
		}
		if e := payload[record.UserCommandEnded](t, rec); e.Cancelled || e.Error != "" { // before it began
			cancelled++
		}
	}
	if cancelled != 2 {
		t.Errorf("%d commands were cancelled", cancelled)
	}
}

// waitForRunning waits until a sandbox runs n commands.
func (w *testEnv) waitForRunning(id string, n int) {
	w.t.Helper()
	for {
		var s Sandbox
		w.get("/sandboxes/"+id).requireStatus(w.t, 200).decodeInto(w.t, &s)
		if len(s.Commands) == n {
			return
		}
	}
}

// A DELETE of the command or its sandbox, and the end of the server, each end a
// command. Its client gets the end.
func TestExecEnds(t *testing.T) {
	for name, end := range map[string]func(w *testEnv, id, exec string){
		"DELETE of the command": func(w *testEnv, id, exec string) {
			for range 2 {
				var e ExecEnd
				w.do(bobToken, "DELETE", "/sandboxes/"+id+"/exec/"+exec, "").requireStatus(w.t, 200).decodeInto(w.t, &e)
				if !e.Cancelled || e.Exec != exec || e.Stdout.Bytes != 7 {
					w.t.Errorf("it ended as %+v", e)
				}
			}
		},
		"DELETE of the sandbox": func(w *testEnv, id, _ string) { w.do(bobToken, "DELETE", "/sandboxes/"+id, "").requireStatus(w.t, 200) },
		"the server stops": func(w *testEnv, _, _ string) {
			if err := w.stop(); err != nil {
				w.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, "  - text: Never asked.\n")
			id := w.startSandbox(`{}`).ID
			var o execOutput
			f := w.followExec(t.Context(), id, execBody("gate"), "Idempotency-Key", "k")
			f.waitFor(&o, "before\n")
			var s Sandbox
			w.get("/sandboxes/"+id).requireStatus(t, 200).decodeInto(t, &s)
			if s.State != StateRunning || len(s.Commands) != 1 || s.Commands[0] != o.id {
				t.Errorf("it is %+v", s)
			}
			end(w, id, o.id)
			rest := f.readExec()
			if rest.end == nil || !rest.end.Cancelled {
				t.Errorf("it ended as %+v", rest)
			}
			if err := w.stop(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(filepath.Join(sessiondir.Path(w.state, id), sessiondir.OutputDir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its output is left: %v", err)
			}
		})
	}
}

// No client makes a sandbox run or keep more than it may.
func TestExecBounds(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	w.backend.gate = make(chan struct{})
	id := w.startSandbox(`{}`).ID
	var running sync.WaitGroup
	for range maxRunning {
		f := w.followExec(t.Context(), id, execBody("gate"))
		running.Go(func() { f.readExec() })
	}
	if p := w.post("/sandboxes/"+id+"/exec", execBody("say x")).requireProblem(t, 429, "commands"); p.Detail == "" {
		t.Error("there is no reason")
	}
	close(w.backend.gate)
	running.Wait()
	refused := 0
	for i := range maxKeyed + 5 {
		a := w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", execBody("say x"), "Idempotency-Key", fmt.Sprint("key-", i), "Accept", "application/json")
		if a.status != 200 {
			a.requireProblem(t, 429, "keys")
			refused++
		}
	}
	if refused != 5 {
		t.Errorf("%d keys were refused", refused)
	}
	if r := w.runExec(id, execBody("say x"), "Idempotency-Key", "key-0"); r.Output.Stdout.Text != "x\n" {
		t.Errorf("the first key: %+v", r)
	}
	if r := w.runExec(id, execBody("say x")); r.Status != 0 {
		t.Errorf("without a key: %+v", r)
	}
}

// The end tells how much output was not kept. A client that reads nothing
// blocks neither the command nor memory.
func TestExecOutputIsBounded(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSandbox(`{}`).ID
	const most = keptStream + keptStream/2
	commands := w.server.sessions.liveSession(id).sandbox.commands
	var err error
	if commands.store, err = outputlog.NewStore(filepath.Join(sessiondir.Path(w.state, id), sessiondir.OutputDir), keptStream, 3*keptStream); err != nil {
		t.Fatal(err)
	}
	body := execBody(fmt.Sprint("flood ", most))
	slow := w.followExec(t.Context(), id, body, "Idempotency-Key", "k") // reads nothing yet
	r := w.runExec(id, body, "Idempotency-Key", "k")
	if !r.Stdout.Truncated || r.Stdout.Bytes != most || r.Stderr.Truncated || !r.Output.Elided || len(r.Output.Stdout.Text) != resultBytes {
		t.Errorf("got %+v with %d bytes", r.ExecEnd, len(r.Output.Stdout.Text))
	}
	o := slow.readExec()
	if len(o.stdout) != keptStream || !o.end.Stdout.Truncated {
		t.Errorf("the slow client got %d bytes, %+v", len(o.stdout), o.end)
	}
	// A sandbox that keeps too much takes no more keys.
	w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", body, "Idempotency-Key", "second", "Accept", "application/json").requireStatus(t, 200)
	w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", body, "Idempotency-Key", "third").requireProblem(t, 507, "output")
	if r := w.runExec(id, body); r.Stdout.Bytes != most || !r.Stdout.Truncated {
		t.Errorf("without a key: %+v", r.ExecEnd)
	}
	if r := w.runExec(id, body, "Idempotency-Key", "k"); len(r.Output.Stdout.Text) != resultBytes {
		t.Errorf("the first key: %+v", r.ExecEnd)
	}
}

// A command that does not end properly is a problem, in both kinds of answers.
func TestExecFails(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSandbox(`{}`).ID
	w.backend.OnStart = func(context.Context, sandbox.Command) error {
		return fmt.Errorf("%w: the working directory is not there", sandbox.ErrInvalid)
	}
	w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", execBody("say x"), "Accept", "application/json").requireProblem(t, 422, "command")
	if o := w.followExec(t.Context(), id, execBody("say x")).readExec(); o.problem == nil || o.problem.Code != "command" {
		t.Errorf("got %+v", o)
	}
	w.backend.OnStart = func(context.Context, sandbox.Command) error { return errors.New("secret of /the/host") }
	p := w.do(aliceToken, "POST", "/sandboxes/"+id+"/exec", execBody("say x"), "Accept", "application/json").requireProblem(t, 500, "internal")
	if strings.Contains(p.Detail, "secret") || p.ErrorID == "" {
		t.Errorf("got %+v", p)
	}
}
