package page

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tokens of the tests, by their labels.
var tokens = map[string]server.Token{
	"alice": {Label: "alice", Value: "alice-0123456789abcdef0123456789", Roles: []server.Role{server.RoleAdmin}},
	"bob":   {Label: "bob", Value: "bob-0123456789abcdef012345678901", Roles: []server.Role{server.RoleRead, server.RoleApprove}},
	"carol": {Label: "carol", Value: "carol-0123456789abcdef0123456789", Roles: []server.Role{server.RoleRead}},
}

// site is a server with its page on a TCP port, with a fake sandbox whose
// commands print their own text and a replayed model.
type site struct {
	t          *testing.T
	state, dir string
	turns      string // the model's script, in YAML
	backend    *fakesandbox.Backend
	srv        *server.Server
	base       string
}

func newSite(t *testing.T, turns string) *site {
	t.Helper()
	root := t.TempDir()
	w := &site{t: t, state: filepath.Join(root, "state"), dir: filepath.Join(root, "work"), turns: turns, backend: &fakesandbox.Backend{}}
	w.backend.Other = func(_ context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		text := cmd.Argv[len(cmd.Argv)-1]
		if name, content, ok := strings.Cut(text, " > "); ok {
			if os.WriteFile(filepath.Join(b.Dir.Name(), name), []byte(content+"\n"), 0o644) != nil {
				return sandbox.ExitStatus{Code: 1}
			}
		}
		_, _ = io.WriteString(cmd.Stdout, text+"\n")
		return sandbox.ExitStatus{}
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o := server.Options{
		StateDir: w.state, Prepare: w.prepare, OpenWorkspace: w.openWorkspace,
		Resume: func(context.Context, string, server.ResumeSession) (runner.Options, func(), error) {
			return runner.Options{}, nil, errors.New("not here")
		},
		PrepareSandbox: func(context.Context, server.NewSandbox) (runner.Options, func(), error) {
			return runner.Options{}, nil, errors.New("not here")
		},
	}
	for _, token := range tokens {
		o.Tokens = append(o.Tokens, token)
	}
	var err error
	if w.srv, err = server.New(o); err != nil {
		t.Fatal(err)
	}
	w.srv.ServePages(New(w.srv, Options{Workspace: w.dir, Doctor: func(context.Context) []Finding {
		return []Finding{{"kernel", "ok", "6.1", ""}, {"docker", "failed", "no engine <b>", "Start it."}}
	}}))
	l, err := server.Listen(t.Context(), "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	w.base = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.srv.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		w.backend.RequireGone(t)
	})
	return w
}

func (w *site) openWorkspace(path string) (*runner.Workspace, error) {
	return runner.OpenWorkspace(path, runner.Protected{State: w.state})
}

func (w *site) prepare(_ context.Context, in server.NewSession) (runner.Options, func(), error) {
	var none runner.Options
	ws, err := w.openWorkspace(in.Workspace)
	if err != nil {
		return none, nil, err
	}
	dir, err := sessiondir.Create(w.state, nil)
	if err != nil {
		return none, nil, errors.Join(err, ws.Close())
	}
	script := filepath.Join(dir.Path, "script.yaml")
	if err := os.WriteFile(script, []byte("version: 1\nname: test\nturns:\n"+w.turns), 0o600); err != nil {
		return none, nil, err
	}
	model, err := replay.Open(script, replay.Options{})
	if err != nil {
		return none, nil, err
	}
	preset, err := policy.Preset("default")
	if err != nil {
		return none, nil, err
	}
	return runner.Options{
		Dir: dir, Workspace: ws, Version: "test",
		SandboxOptions: runner.SandboxOptions{
			Backend: w.backend, Choice: record.BackendChoice{Asked: "fake", Chosen: "fake"},
			Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Mode: sandbox.WorkspaceMode(in.Mode),
		},
		ModelOptions:  runner.ModelOptions{Profiles: []loop.Profile{{Model: model}}, Budget: limits.Budget{Rounds: new(int64(40))}},
		PolicyOptions: runner.PolicyOptions{Policy: preset},
	}, func() { _, _ = dir.Close(), ws.Close() }, nil
}

// browser is somebody who is signed in.
type browser struct {
	*site
	cookie, form string
}

var formToken = regexp.MustCompile(`name="form" value="([0-9a-f]{32})"`)

// newCode returns a code with which somebody signs in.
func (w *site) newCode(name string) string {
	w.t.Helper()
	status, _, text := (&browser{site: w}).send("POST", "/signins", nil, "Authorization", "Bearer "+tokens[name].Value)
	var code server.SignIn
	if err := json.Unmarshal([]byte(text), &code); status != http.StatusCreated || err != nil {
		w.t.Fatalf("no code: %d %s", status, text)
	}
	return code.Code
}

// signIn signs somebody in with a code, as a browser does.
func (w *site) signIn(name string) *browser {
	w.t.Helper()
	b := &browser{site: w}
	b.useCode(w.newCode(name))
	return b
}

func (b *browser) useCode(code string, values ...string) {
	b.t.Helper()
	form := url.Values{"code": {code}, "to": {"/"}}
	for i := 0; i+1 < len(values); i += 2 {
		form.Set(values[i], values[i+1])
	}
	status, header, text := b.send("POST", "/login", form)
	if status != http.StatusSeeOther || header.Get("Location") != "/" {
		b.t.Fatalf("signed in with %d: %s", status, text)
	}
	b.cookie, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	b.form = formToken.FindStringSubmatch(b.get("/", 200))[1]
}

// TestSignInAsAnother: a code of somebody else signs nobody out without asking.
func TestSignInAsAnother(t *testing.T) {
	w := newSite(t, "  - text: Never asked.\n")
	b := w.signIn("alice")
	alice, code := b.cookie, w.newCode("bob")
	for range 2 { // asking doesn't use the code
		status, header, text := b.send("POST", "/login", url.Values{"code": {code}, "to": {"/"}})
		if status != http.StatusOK || header.Get("Set-Cookie") != "" || !strings.Contains(text, "Sign in as bob") || !strings.Contains(text, `value="`+code+`"`) {
			t.Fatalf("a code of bob gives alice %d %v\n%s", status, header, text)
		}
	}
	b.get("/", http.StatusOK)
	b.useCode(code, "replace", "yes")
	if !strings.Contains(b.get("/", http.StatusOK), "<span>bob</span>") {
		t.Error("bob isn't signed in")
	}
	(&browser{site: w, cookie: alice}).get("/", http.StatusUnauthorized)
	bob := b.cookie
	b.useCode(w.newCode("bob")) // nobody is asked: it is the same user
	(&browser{site: w, cookie: bob}).get("/", http.StatusUnauthorized)
}

// send sends what a browser sends for a link, or with values for a form.
func (b *browser) send(method, path string, values url.Values, header ...string) (int, http.Header, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(values.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	if values == nil {
		req.Body, req.ContentLength = nil, 0
	} else {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", b.base)
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if b.cookie != "" {
		req.Header.Set("Cookie", b.cookie)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Del(header[i])
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

func (b *browser) get(path string, want int) string {
	b.t.Helper()
	status, _, text := b.send("GET", path, nil)
	if status != want {
		b.t.Fatalf("%s: status %d, want %d: %s", path, status, want, text)
	}
	return text
}

// post sends a form, and returns where it leads.
func (b *browser) post(path string, want int, values ...string) (to, text string) {
	b.t.Helper()
	form := url.Values{"form": {b.form}}
	for i := 0; i+1 < len(values); i += 2 {
		form.Set(values[i], values[i+1])
	}
	status, header, text := b.send("POST", path, form)
	if status != want {
		b.t.Fatalf("POST %s: status %d, want %d: %s", path, status, want, text)
	}
	return header.Get("Location"), text
}

// start starts a session with a task, and returns its path.
func (b *browser) start(mode, task string) string {
	b.t.Helper()
	to, _ := b.post("/", http.StatusSeeOther, "workspace", b.dir, "mode", mode, "message", task)
	if !strings.HasPrefix(to, "/s/ses_") {
		b.t.Fatalf("a new session leads to %q", to)
	}
	return to
}

type event struct{ id, name, data string }

// follow returns the events of a session's stream as they come.
func (b *browser) follow(session, last string) (next func() event) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.base+session+"/stream", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Cookie", b.cookie)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		b.t.Fatal(res, err)
	}
	b.t.Cleanup(func() { _ = res.Body.Close() })
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	return func() event {
		b.t.Helper()
		var e event
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch {
			case name == "id":
				e.id = value
			case name == "event":
				e.name = value
			case name == "data":
				e.data += value + "\n"
			case e.name != "":
				return e
			}
		}
		b.t.Fatalf("the stream ended early: %v", lines.Err())
		return e
	}
}

// until returns the first event with a name and a text.
func until(next func() event, name, text string) event {
	for {
		if e := next(); e.name == name && strings.Contains(e.data, text) {
			return e
		}
	}
}

var questionFields = regexp.MustCompile(`name="turn" value="(trn_[0-9A-Z]+)"[\s\S]*?name="request" value="([0-9a-f]{32})"`)

// TestWatchAndAnswer: a task is typed, its question is shown and allowed, and the story shows
// the rest, live and when it is over.
func TestWatchAndAnswer(t *testing.T) {
	w := newSite(t, `
  - calls: [{tool: shell, input: {command: "out.txt > <b>bold</b>"}}]
  - text: I wrote **it**.
`)
	alice := w.signIn("alice")
	session := alice.start("overlay", "write <i>the</i> file")
	next := alice.follow(session, "")
	ask := until(next, "ask", "out.txt")
	if !strings.Contains(ask.data, "&gt; &lt;b&gt;bold") || strings.Contains(ask.data, "<b>bold") {
		t.Errorf("the question is not shown as it is:\n%s", ask.data)
	}
	if text := alice.get("/?show=waiting", 200); !strings.Contains(text, session) {
		t.Error("the session isn't listed as waiting")
	}
	if text := alice.get("/?show=failed", 200); strings.Contains(text, session) {
		t.Error("the session is listed as failed")
	}
	fields := questionFields.FindStringSubmatch(alice.get(session, 200))
	if fields == nil {
		t.Fatalf("the page has no card:\n%s", alice.get(session, 200))
	}
	if to, _ := alice.post(session+"/answer", http.StatusSeeOther, "turn", fields[1], "request", fields[2], "decision", "allow"); to != session {
		t.Errorf("an answer leads to %q", to)
	}
	until(next, "step", "bold")
	end := until(next, "step", "I wrote <strong>it</strong>")
	// A stream that is opened again goes on behind the last event.
	again := alice.follow(session, end.id)
	if e := until(again, "step", ""); e.id <= end.id && len(e.id) <= len(end.id) {
		t.Errorf("after %s the stream repeats %s", end.id, e.id)
	}
	if text := alice.get(session+"/changes", 200); !strings.Contains(text, "out.txt") || !strings.Contains(text, "action") {
		t.Errorf("the changes aren't shown:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "out.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Error("an overlay's changes are in the workspace before they are applied")
	}
	alice.post(session+"/apply", http.StatusSeeOther, "action", "apply")
	if text, err := os.ReadFile(filepath.Join(w.dir, "out.txt")); string(text) != "<b>bold</b>\n" {
		t.Errorf("applied %q, %v", text, err)
	}
	until(next, "end", "")
	for _, path := range []string{session, session + "/timeline", session + "/records", session + "/changes", session + "/chunk/0", "/doctor", "/?q=file", "/?show=all"} {
		text := alice.get(path, 200)
		for _, bad := range []string{"<b>bold", "<i>the", " style=", "<script>", "no engine <b>", "onerror", "ZgotmplZ"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %s", path, bad)
			}
		}
	}
	to := redirect(alice, session+"/find?q=bold")
	if !strings.HasPrefix(to, session+"?at=") || !strings.Contains(to, "#s") {
		t.Errorf("a search leads to %q", to)
	}
	if to = redirect(alice, session+"/find?q=nowhere"); !strings.Contains(to, "found=no") {
		t.Errorf("a search for nothing leads to %q", to)
	}
}

func redirect(b *browser, path string) string {
	b.t.Helper()
	status, header, text := b.send("GET", path, nil)
	if status != http.StatusSeeOther {
		b.t.Fatalf("%s: status %d: %s", path, status, text)
	}
	return header.Get("Location")
}

// TestOneAnswerCounts: of answers that are given at once one counts, and the others are told whose.
func TestOneAnswerCounts(t *testing.T) {
	w := newSite(t, "  - calls: [{tool: shell, input: {command: say}}]\n  - text: Done.\n")
	alice, bob, carol := w.signIn("alice"), w.signIn("bob"), w.signIn("carol")
	session := alice.start("bind", "go")
	until(alice.follow(session, ""), "ask", "say")
	fields := questionFields.FindStringSubmatch(bob.get(session, 200))
	if fields == nil {
		t.Fatal("the page has no card")
	}
	if questionFields.MatchString(carol.get(session, 200)) {
		t.Error("somebody who may not answer is offered it")
	}
	form := []string{"turn", fields[1], "request", fields[2], "decision", "deny", "reason", "not now"}
	if _, text := carol.post(session+"/answer", http.StatusForbidden, form...); !strings.Contains(text, "approve") {
		t.Errorf("a role that is missing is not named:\n%s", text)
	}
	bob.get("/doctor", http.StatusForbidden)
	var group sync.WaitGroup
	statuses, texts := make([]int, 2), make([]string, 2)
	for i, b := range []*browser{alice, bob} {
		group.Go(func() {
			values := url.Values{"form": {b.form}}
			for k := 0; k < len(form); k += 2 {
				values.Set(form[k], form[k+1])
			}
			statuses[i], _, texts[i] = b.send("POST", session+"/answer", values)
		})
	}
	group.Wait()
	late := 0
	if statuses[1] == http.StatusConflict {
		late = 1
	}
	if statuses[late] != http.StatusConflict || statuses[1-late] != http.StatusSeeOther {
		t.Fatalf("statuses %v", statuses)
	}
	if winner := []string{"http:alice/browser", "http:bob/browser"}[1-late]; !strings.Contains(texts[late], winner) {
		t.Errorf("it doesn't say that %s answered:\n%s", winner, texts[late])
	}
}

var assetOf = regexp.MustCompile(`/assets/[a-z.]+\?[0-9a-f]{16}`)

// TestOnlyOwnForms: forms are taken from the page's own documents alone. Every refusal has an accepted form
// beside it.
func TestOnlyOwnForms(t *testing.T) {
	w := newSite(t, "  - text: Done.\n")
	alice := w.signIn("alice")
	good := url.Values{"form": {alice.form}, "workspace": {w.dir}, "mode": {"bind"}}
	for name, tt := range map[string]struct {
		form   url.Values
		header []string
		want   int
	}{
		"its own":             {good, nil, http.StatusSeeOther},
		"no origin":           {good, []string{"Origin", ""}, http.StatusForbidden},
		"another origin":      {good, []string{"Origin", "http://127.0.0.1:1"}, http.StatusForbidden},
		"a null origin":       {good, []string{"Origin", "null"}, http.StatusForbidden},
		"another site":        {good, []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		"an unknown site":     {good, []string{"Sec-Fetch-Site", ""}, http.StatusForbidden},
		"no form token":       {url.Values{"workspace": {w.dir}}, nil, http.StatusForbidden},
		"another form token":  {url.Values{"form": {strings.Repeat("0", 32)}, "workspace": {w.dir}}, nil, http.StatusForbidden},
		"another cookie":      {good, []string{"Cookie", server.SignInCookie + "=AAAA"}, http.StatusUnauthorized},
		"a bearer token only": {good, []string{"Cookie", "", "Authorization", "Bearer " + tokens["alice"].Value}, http.StatusUnauthorized},
		"JSON":                {good, []string{"Content-Type", "application/json"}, http.StatusUnsupportedMediaType},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _, text := alice.send("POST", "/", tt.form, tt.header...); status != tt.want {
				t.Errorf("status %d, want %d: %s", status, tt.want, text)
			}
		})
	}
	stranger := &browser{site: w}
	if status, _, _ := stranger.send("POST", "/login", url.Values{"code": {strings.Repeat("A", 5000)}}); status != http.StatusUnauthorized {
		t.Errorf("a stranger's large form: status %d", status)
	}
	if status, _, _ := stranger.send("POST", "/s/x/stream", url.Values{"code": {"A"}}); status != http.StatusUnauthorized {
		t.Errorf("a stranger's form elsewhere: status %d", status)
	}
	// The cookie is of the page alone.
	if status, _, _ := alice.send("GET", "/sessions", nil); status != http.StatusUnauthorized {
		t.Errorf("the API takes a cookie: status %d", status)
	}
	if status, _, _ := alice.send("GET", "/sessions", nil, "Authorization", "Bearer "+tokens["alice"].Value); status != http.StatusOK {
		t.Errorf("the API takes no token: status %d", status)
	}
	_, header, _ := alice.send("GET", "/", nil)
	for name, want := range map[string]string{"Content-Security-Policy": contentPolicy, "X-Frame-Options": "DENY", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store"} {
		if header.Get(name) != want {
			t.Errorf("%s: %q", name, header.Get(name))
		}
	}
	addresses := assetOf.FindAllString(alice.get("/", 200), -1)
	if len(addresses) != 2 {
		t.Errorf("the page loads %q", addresses)
	}
	for _, address := range addresses {
		for coding, most := range map[string]int{"": 40_000, "gzip": 12_000} {
			status, header, text := alice.send("GET", address, nil, "Accept-Encoding", cmp.Or(coding, "identity"))
			if status != http.StatusOK || header.Get("Content-Encoding") != coding || len(text) < 2000 || len(text) > most || !strings.Contains(header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s: status %d, %d bytes, %v", address, status, len(text), header)
			}
		}
	}
	alice.post("/logout", http.StatusSeeOther)
	alice.get("/", http.StatusUnauthorized)
}

// TestManySessions: pages of a list, and what a search finds, also among many.
func TestManySessions(t *testing.T) {
	w := newSite(t, "  - text: Done.\n")
	alice := w.signIn("alice")
	var last string
	for i := range perPage/5 + 3 {
		last = alice.start("bind", fmt.Sprintf("the task-%d-here", i))
		alice.post(last+"/end", http.StatusSeeOther)
	}
	text := alice.get("/?q=the+task-7-here", 200)
	if strings.Count(text, `href="/s/ses_`) != 1 {
		t.Errorf("a search finds\n%s", text)
	}
	if !strings.Contains(alice.get("/s/last", 200), last) {
		t.Error("last is another session")
	}
	alice.get("/s/ses_00000000000000000000000000", 404)
	alice.get("/s/..%2f..%2fetc", 404)
	alice.get("/nothing", 404)
}
