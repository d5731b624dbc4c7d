package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

func (w *testEnv) startSandbox(body string) Sandbox {
	w.t.Helper()
	var s Sandbox
	w.post("/sandboxes", body).requireStatus(w.t, 201).decodeInto(w.t, &s)
	return s
}

// listSandboxes returns the IDs on one page.
func (w *testEnv) listSandboxes(query string) (ids []string, next string) {
	w.t.Helper()
	var list SandboxList
	w.get("/sandboxes"+query).requireStatus(w.t, 200).decodeInto(w.t, &list)
	for _, s := range list.Sandboxes {
		ids = append(ids, s.ID)
	}
	return ids, list.Next
}

// TestSandboxLife starts a sandbox with a workspace and one without, looks at
// them in both lists, and ends them. Only their records are left.
func TestSandboxLife(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	own := w.startSandbox(`{"title":"mine","ttl_seconds":90}`)
	if own.State != StateIdle || own.Title != "mine" || own.TTL != 90 || own.Workspace != "" || own.Client != "http:alice" || own.Attestation == nil {
		t.Errorf("started %+v", own)
	}
	dir := sessiondir.WorkspacePath(w.state, own.ID)
	if err := os.WriteFile(filepath.Join(dir, "made"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other := w.startSandbox(fmt.Sprintf(`{"workspace":%q,"mode":"bind"}`, w.dir))
	if other.Workspace != w.dir || other.TTL != 3600 {
		t.Errorf("started %+v", other)
	}
	if ids, next := w.listSandboxes("?limit=1"); len(ids) != 1 || ids[0] != other.ID || next != other.ID {
		t.Errorf("the first page has %q, and %q is next", ids, next)
	}
	if ids, next := w.listSandboxes("?limit=1&before=" + other.ID); len(ids) != 1 || ids[0] != own.ID || next != "" {
		t.Errorf("the second page has %q, and %q is next", ids, next)
	}
	var session Session
	w.get("/sessions/"+own.ID).requireStatus(t, 200).decodeInto(t, &session)
	if session.Model != "none" || session.State != StateIdle {
		t.Errorf("as a session: %+v", session)
	}
	w.post("/sessions/"+own.ID+"/turns", `{"message":"go"}`).requireProblem(t, 409, "no_model")
	for _, id := range []string{own.ID, other.ID} {
		for range 2 { // ending an ended one does nothing
			var ended Sandbox
			w.do(aliceToken, "DELETE", "/sandboxes/"+id, "").requireStatus(t, 200).decodeInto(t, &ended)
			if ended.State != StateEnded || ended.Problem != nil {
				t.Errorf("ended as %+v", ended)
			}
		}
	}
	w.backend.RequireGone(t)
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its workspace is left: %v", err)
	}
	if _, err := os.Lstat(w.dir); err != nil {
		t.Errorf("the user's workspace: %v", err)
	}
	if ids, _ := w.listSandboxes(""); len(ids) != 0 {
		t.Errorf("ended sandboxes are listed: %q", ids)
	}
	var ended Sandbox
	w.do(bobToken, "GET", "/sandboxes/"+own.ID, "").requireStatus(t, 200).decodeInto(t, &ended)
	if ended.Workspace != "" || ended.State != StateEnded {
		t.Errorf("it is shown as %+v", ended)
	}
	if records := w.trace(own.ID); payload[record.SessionEnded](t, records[len(records)-1]).Client != "http:alice" {
		t.Errorf("its trace ends with %s", records[len(records)-1].Payload)
	}
}

// Nothing but a sandbox is found, whatever its name.
func TestSandboxIDs(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	w.opts = nil
	session := w.startSession("bind")
	for _, id := range []string{session, "ses_00000000000000000000000000", "x", "..", "%2e%2e", "..%2f..%2fetc", "ses_%00", strings.Repeat("a", 5000)} {
		for _, method := range []string{"GET", "DELETE"} {
			if a := w.do(aliceToken, method, "/sandboxes/"+id, ""); a.status != 404 {
				t.Errorf("%s %s: %d %s", method, id, a.status, a.text)
			}
		}
	}
	var s Session
	w.get("/sessions/"+session).requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateIdle {
		t.Errorf("the session is %s", s.State)
	}
}

// A request that can't be granted is refused, and takes no place.
func TestSandboxIsRefused(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.MaxSessions, o.MaxSandboxTTL = 1, time.Minute })
	for body, code := range map[string]string{
		`{"ttl_seconds":61}`: "refused", `{"ttl_seconds":0}`: "invalid", `{"workspace":"/etc"}`: "workspace", `{"ttl":5}`: "invalid", `{"Title":"x"}`: "malformed",
		`{"mode":"mild"}`: "invalid", `[]`: "invalid",
	} {
		a := w.post("/sandboxes", body)
		if a.status/100 != 4 || !strings.Contains(a.text, `"code":"`+code+`"`) {
			t.Errorf("%s: %d %s, want %s", body, a.status, a.text, code)
		}
	}
	s := w.startSandbox(`{}`)
	if s.TTL != 60 {
		t.Errorf("its time to live is %d s", s.TTL)
	}
	w.post("/sandboxes", `{}`).requireProblem(t, 429, "sessions")
	w.post("/sessions", fmt.Sprintf(`{"workspace":%q}`, w.dir)).requireProblem(t, 429, "sessions")
	w.do(aliceToken, "DELETE", "/sandboxes/"+s.ID, "").requireStatus(t, 200)
	w.startSandbox(`{}`)
}

// The client is told where to find the cause, and nothing is left.
func TestSandboxDoesNotStart(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.MaxSessions = 1 })
	w.backend.OnCreate = func(context.Context, int) error { return errors.New("no room in /secret/place") }
	for range 2 { // it takes no place
		p := w.post("/sandboxes", `{}`).requireProblem(t, 503, "sandbox_start")
		if p.ErrorID == "" || strings.Contains(p.Detail, "secret") {
			t.Errorf("got %+v", p)
		}
	}
	if left, err := filepath.Glob(sessiondir.WorkspacePath(w.state, "*")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// Without a command, a sandbox ends after its time to live.
func TestSandboxEndsUnused(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	s := w.startSandbox(`{"ttl_seconds":1}`)
	if live := w.server.sessions.liveSession(s.ID); live != nil { // nil: it was fast
		<-live.closed
	}
	w.get("/sandboxes/"+s.ID).requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateEnded {
		t.Errorf("it is %s", s.State)
	}
	w.backend.RequireGone(t)
}

// A client that leaves, a DELETE and the end of the server each end a sandbox
// that is just being made.
func TestSandboxEndsWhileItStarts(t *testing.T) {
	for name, end := range map[string]func(w *testEnv, id string, leave func()){
		"the client leaves": func(_ *testEnv, _ string, leave func()) { leave() },
		"DELETE": func(w *testEnv, id string, _ func()) {
			w.do(bobToken, "DELETE", "/sandboxes/"+id, "").requireStatus(w.t, 200)
		},
		"the server stops": func(w *testEnv, _ string, _ func()) {
			if err := w.stop(); err != nil {
				w.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, "  - text: Never asked.\n")
			making := make(chan struct{})
			w.backend.OnCreate = func(ctx context.Context, _ int) error {
				close(making)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var request sync.WaitGroup
			request.Go(func() {
				a, err := send(ctx, http.DefaultClient, w.base, aliceToken, "POST", "/sandboxes", `{}`)
				if err == nil && a.status/100 == 2 {
					t.Errorf("it started: %s", a.text)
				}
			})
			<-making
			live := w.server.sessions.listLive()[0]
			end(w, live.id, leave)
			<-live.closed
			request.Wait()
			w.backend.RequireGone(t)
		})
	}
}

// The same request with the same key has one sandbox, however many are sent at
// once and even if the first client has left. After its end the key is free.
func TestSandboxKeys(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	making, goOn := make(chan struct{}, 100), make(chan struct{})
	w.backend.OnCreate = func(ctx context.Context, _ int) error {
		making <- struct{}{}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	post := func(ctx context.Context, token, key, body string) (answer, error) {
		return send(ctx, http.DefaultClient, w.base, token, "POST", "/sandboxes", body, "Idempotency-Key", key)
	}
	// The first client leaves while its sandbox is made.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var first sync.WaitGroup
	first.Go(func() {
		if _, err := post(ctx, aliceToken, "k", `{}`); !errors.Is(err, context.Canceled) {
			t.Errorf("the first client got %v", err)
		}
	})
	<-making
	leave()
	first.Wait()
	const clients = 30
	answers := make(chan answer, clients)
	for range clients {
		go func() {
			a, err := post(t.Context(), aliceToken, "k", `{}`)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	w.do(aliceToken, "POST", "/sandboxes", `{"title":"other"}`, "Idempotency-Key", "k").requireProblem(t, 422, "key_reused")
	close(goOn)
	ids := map[string]bool{}
	var s Sandbox
	for range clients {
		(<-answers).requireStatus(t, 201).decodeInto(t, &s)
		ids[s.ID] = true
	}
	if live, _ := w.listSandboxes(""); len(ids) != 1 || len(live) != 1 {
		t.Fatalf("%d sandboxes for one key, %d live", len(ids), len(live))
	}
	var bobs Sandbox
	w.do(bobToken, "POST", "/sandboxes", `{}`, "Idempotency-Key", "k").requireStatus(t, 201).decodeInto(t, &bobs)
	if ids[bobs.ID] {
		t.Error("another client got it by its key")
	}
	// While it ends there is no second one, and after it there is.
	live := w.server.sessions.liveSession(s.ID)
	w.backend.gate = make(chan struct{})
	live.mu.Lock()
	live.ending = true
	live.mu.Unlock()
	w.do(aliceToken, "POST", "/sandboxes", `{}`, "Idempotency-Key", "k").requireProblem(t, 409, "closing")
	w.do(aliceToken, "DELETE", "/sandboxes/"+s.ID, "").requireStatus(t, 200)
	var next Sandbox
	w.do(aliceToken, "POST", "/sandboxes", `{}`, "Idempotency-Key", "k").requireStatus(t, 201).decodeInto(t, &next)
	if next.ID == s.ID {
		t.Error("the key has a sandbox that ended")
	}
	// A start that fails leaves the key free.
	w.backend.OnCreate = func(context.Context, int) error { return errors.New("no") }
	for range 2 {
		w.do(aliceToken, "POST", "/sandboxes", `{}`, "Idempotency-Key", "fails").requireProblem(t, 503, "sandbox_start")
	}
	w.backend.OnCreate = nil
	w.do(aliceToken, "POST", "/sandboxes", `{}`, "Idempotency-Key", "fails").requireStatus(t, 201)
}
