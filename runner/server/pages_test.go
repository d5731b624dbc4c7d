package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
)

// plainPages are pages that show who asks, for tests of the guard.
type plainPages struct{}

func (plainPages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u, ok := UserOf(r.Context())
	fmt.Fprintf(w, "page for %q %v: %s", u.Label(), ok, r.PostForm.Get("message"))
}

func (plainPages) Refuse(w http.ResponseWriter, _ *http.Request, p *Problem) {
	w.WriteHeader(p.Status)
	_, _ = io.WriteString(w, "refused: "+p.Code)
}

// newPagesEnv is newTestEnv with plainPages and a signed-in user.
func newPagesEnv(t *testing.T, turns string) (w *testEnv, cookie string, u User) {
	t.Helper()
	w = newTestEnv(t, turns)
	w.server.ServePages(plainPages{})
	c, ok := w.server.SignIn(w.server.NewCode(Token{Label: "alice"}), "127.0.0.1:80")
	if !ok {
		t.Fatal("can't sign in")
	}
	u, ok = w.server.guard.signIns.findUser(requestWith(t, c.Value))
	if !ok {
		t.Fatal("nobody is signed in")
	}
	return w, c.Name + "=" + c.Value, u
}

// A form counts only if a page of this very server sent it, for the user who is signed
// in. The cookie opens no route of the API, and a token no page.
func TestPagesTakeOwnFormsOnly(t *testing.T) {
	w, cookie, u := newPagesEnv(t, "  - text: Never asked.\n")
	port := w.base[strings.LastIndex(w.base, ":")+1:]
	const form = "application/x-www-form-urlencoded"
	good := map[string]string{"Origin": w.base, "Sec-Fetch-Site": "same-origin", "Cookie": cookie, "Content-Type": form}
	own := "message=hello&form=" + u.Form()
	served := fmt.Sprintf("page for %q true: hello", "alice/browser")
	for name, tt := range map[string]struct {
		method, path, body string
		change             map[string]string // "" removes a header
		status             int
		says               string
	}{
		"the control":         {"POST", "/s/x/message", own, nil, 200, served},
		"the name of its own": {"POST", "/s/x/message", own, map[string]string{"Host": strings.ToUpper(w.server.PageHost(Token{Label: "alice"})) + ":" + port, "Origin": "http://" + w.server.PageHost(Token{Label: "alice"}) + ":" + port}, 200, served},
		"a page":              {"GET", "/", "", nil, 200, `page for "alice/browser" true`},
		"a page, by address":  {"GET", "/", "", map[string]string{"Origin": "", "Sec-Fetch-Site": "none"}, 200, `"alice/browser" true`},

		"no Origin":               {"POST", "/s/x/message", own, map[string]string{"Origin": ""}, 403, "refused: origin"},
		"no Sec-Fetch-Site":       {"POST", "/s/x/message", own, map[string]string{"Sec-Fetch-Site": ""}, 403, "refused: origin"},
		"typed":                   {"POST", "/s/x/message", own, map[string]string{"Sec-Fetch-Site": "none"}, 403, "refused: origin"},
		"foreign Origin":          {"POST", "/s/x/message", own, map[string]string{"Origin": "http://evil.test"}, 403, "refused: origin"},
		"another port's Origin":   {"POST", "/s/x/message", own, map[string]string{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403, "refused: origin"},
		"opaque Origin":           {"POST", "/s/x/message", own, map[string]string{"Origin": "null"}, 403, "refused: origin"},
		"the other name":          {"POST", "/s/x/message", own, map[string]string{"Host": "localhost:" + port}, 403, "refused: origin"},
		"rebound Host":            {"POST", "/s/x/message", own, map[string]string{"Host": "evil.test", "Origin": "http://evil.test"}, 403, "refused: host"},
		"rebound Host, read":      {"GET", "/", "", map[string]string{"Host": "evil.test", "Origin": ""}, 403, "refused: host"},
		"a name that others know": {"GET", "/", "", map[string]string{"Host": "caisson.localhost", "Origin": ""}, 403, "refused: host"},
		"another name below it":   {"GET", "/", "", map[string]string{"Host": "a.caisson.localhost", "Origin": ""}, 403, "refused: host"},
		"Host like ours":          {"GET", "/", "", map[string]string{"Host": "caisson.localhost.evil.test", "Origin": ""}, 403, "refused: host"},
		"Host that ends alike":    {"GET", "/", "", map[string]string{"Host": "evilcaisson.localhost", "Origin": ""}, 403, "refused: host"},
		"framed elsewhere":        {"GET", "/", "", map[string]string{"Origin": "", "Sec-Fetch-Site": "cross-site"}, 403, "refused: origin"},
		"no form token":           {"POST", "/s/x/message", "message=hello", nil, 403, "refused: origin"},
		"wrong form token":        {"POST", "/s/x/message", "message=hello&form=" + strings.Repeat("0", 32), nil, 403, "refused: origin"},
		"token in the URL":        {"POST", "/s/x/message?form=" + u.Form(), "message=hello", nil, 403, "refused: origin"},
		"JSON":                    {"POST", "/s/x/message", own, map[string]string{"Content-Type": "application/json"}, 415, "refused: content_type"},
		"too large":               {"POST", "/s/x/message", own + "&x=" + strings.Repeat("y", maxBodyBytes), nil, 413, "refused: too_large"},
		"another method":          {"PUT", "/s/x/message", own, nil, 405, "refused: method"},
		"GET with a body":         {"GET", "/", own, nil, 400, "refused: body"},

		"nobody, read":   {"GET", "/", "", map[string]string{"Cookie": ""}, 200, `page for "" false`},
		"a false cookie": {"GET", "/", "", map[string]string{"Cookie": SignInCookie + "=x"}, 200, `page for "" false`},
		"a token":        {"GET", "/", "", map[string]string{"Cookie": "", "Authorization": "Bearer " + aliceToken}, 200, `page for "" false`},

		"cookie to the API":        {"GET", "/sessions", "", nil, 401, `"code":"unauthorized"`},
		"cookie to post there":     {"POST", "/signins", "", nil, 401, `"code":"unauthorized"`},
		"cookie to the metrics":    {"GET", "/metrics", "", nil, 401, `"code":"unauthorized"`},
		"token there, the control": {"GET", "/sessions", "", map[string]string{"Authorization": "Bearer " + aliceToken}, 200, `"sessions"`},
	} {
		var header []string
		for key, value := range good {
			if changed, ok := tt.change[key]; ok {
				value = changed
			}
			if value != "" && (key != "Content-Type" || tt.body != "") {
				header = append(header, key, value)
			}
		}
		for key, value := range tt.change {
			if _, ok := good[key]; !ok {
				header = append(header, key, value)
			}
		}
		a := w.do("", tt.method, tt.path, tt.body, header...)
		if a.status != tt.status || !strings.Contains(a.text, tt.says) {
			t.Errorf("%s: %d %s, want %d %s", name, a.status, a.text, tt.status, tt.says)
		}
		if a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", name, a.header)
		}
	}
	// Without pages, the paths are no routes.
	plain := newTestEnv(t, "  - text: Never asked.\n")
	plain.get("/login").requireProblem(t, http.StatusNotFound, "not_found")
}

// Call does what the API does for the same token, with its refusals.
func TestCall(t *testing.T) {
	w, _, u := newPagesEnv(t, "  - text: Done.\n")
	var made Session
	if err := w.server.Call(t.Context(), u, http.MethodPost, "/sessions", NewSession{Workspace: w.dir, Mode: "bind"}, &made); err != nil || made.Client != "http:alice/browser" {
		t.Fatalf("%+v, %v", made, err)
	}
	var started Started
	if err := w.server.Call(t.Context(), u, http.MethodPost, "/sessions/"+made.ID+"/turns", NewTurn{Message: "go"}, &started); err != nil {
		t.Fatal(err)
	}
	if got := w.waitForTurn(made.ID, started.Turn); got.Answer != "Done." {
		t.Errorf("the turn is %+v", got)
	}
	if n := count(w.trace(made.ID), record.KindTurnStarted); n != 1 {
		t.Errorf("%d turns", n)
	}
	reader := User{client: client{"bob/browser", []Role{RoleRead}}}
	for name, tt := range map[string]struct {
		u            User
		method, path string
		in           any
		code         string // "" if it is done
	}{
		"the control":    {reader, "GET", "/sessions/" + made.ID, nil, ""},
		"without a role": {reader, "DELETE", "/sessions/" + made.ID, nil, "role"},
		"of nobody":      {User{}, "GET", "/sessions/" + made.ID, nil, "role"},
		"no such path":   {u, "GET", "/nothing", nil, "role"},
		"no session":     {u, "GET", "/sessions/ses_00000000000000000000000000", nil, "no_session"},
		"malformed":      {u, "POST", "/sessions", map[string]int{"workspace": 1}, "invalid"},
		"path of a page": {u, "POST", "/login", nil, "role"},
	} {
		err := w.server.Call(t.Context(), tt.u, tt.method, tt.path, tt.in, nil)
		p, ok := errors.AsType[*Problem](err)
		if tt.code == "" && err != nil || tt.code != "" && (!ok || p.Code != tt.code) {
			t.Errorf("%s: %v, want %q", name, err, tt.code)
		}
	}
	if views := w.server.Live(); len(views) != 1 || views[0].ID != made.ID {
		t.Errorf("live: %+v", views)
	}
}
