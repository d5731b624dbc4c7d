package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/runner/record"
)

// sendRaw sends a request as text, for requests that net/http would not send,
// and returns the status and the headers of the response.
func (w *testEnv) sendRaw(request string) (status int, header http.Header) {
	w.t.Helper()
	a := w.exchangeRaw(request)
	return a.status, a.header
}

// exchangeRaw sends a request as text and returns the whole answer.
func (w *testEnv) exchangeRaw(request string) answer {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	// A server that refuses a large request doesn't read all of it. Only the
	// answer counts, even if the rest could not be written.
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte(request))
		wrote <- err
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		conn.Close()
		w.t.Fatal(errors.Join(err, <-wrote))
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body) // a server that did not read all may end with a reset
	return answer{res.StatusCode, res.Header, string(text)}
}

// Requests of other sites, other programs and other names are refused. The same
// requests without the fault are served.
func TestRequestsFromElsewhere(t *testing.T) {
	core, logged := observer.New(zap.DebugLevel)
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.Logger, o.Hosts = zap.New(core), []string{"caisson.test", "proxy.test:443"} })
	id := w.startSession("bind")
	port := w.base[strings.LastIndex(w.base, ":")+1:]
	create := fmt.Sprintf(`{"workspace":%q}`, w.dir)
	requests := []struct {
		method, path, body string
		status             int // without anything wrong
	}{
		{"GET", "/sessions", "", 200},
		{"POST", "/sessions", create, 201},
		{"GET", "/sessions/" + id + "/confirmations", "", 200},
		{"GET", "/openapi.json", "", 200},
		{"GET", "/metrics", "", 200},
		{"HEAD", "/sessions/" + id, "", 200},
	}
	wrongs := map[string]struct {
		token  string
		header []string
		want   int
		code   string
	}{
		"no token":             {"", nil, 401, "unauthorized"},
		"wrong token":          {strings.Repeat("x", 40), nil, 401, "unauthorized"},
		"a token's beginning":  {aliceToken[:len(aliceToken)-1], nil, 401, "unauthorized"},
		"more than the token":  {aliceToken + "x", nil, 401, "unauthorized"},
		"both tokens":          {aliceToken + " " + bobToken, nil, 401, "unauthorized"},
		"another scheme":       {"", []string{"Authorization", "Basic " + aliceToken}, 401, "unauthorized"},
		"bare token":           {"", []string{"Authorization", aliceToken}, 401, "unauthorized"},
		"token as a cookie":    {"", []string{"Cookie", "token=" + aliceToken}, 401, "unauthorized"},
		"foreign Origin":       {aliceToken, []string{"Origin", "https://evil.test"}, 403, "origin"},
		"opaque Origin":        {aliceToken, []string{"Origin", "null"}, 403, "origin"},
		"other port's Origin":  {aliceToken, []string{"Origin", "http://127.0.0.1:1"}, 403, "origin"},
		"file's Origin":        {aliceToken, []string{"Origin", "file://127.0.0.1:" + port}, 403, "origin"},
		"cross-site fetch":     {aliceToken, []string{"Sec-Fetch-Site", "cross-site"}, 403, "origin"},
		"same-site fetch":      {aliceToken, []string{"Sec-Fetch-Site", "same-site"}, 403, "origin"},
		"rebound Host":         {aliceToken, []string{"Host", "evil.test:" + port}, 403, "host"},
		"rebound both":         {aliceToken, []string{"Host", "evil.test:" + port, "Origin", "http://evil.test:" + port}, 403, "host"},
		"Host like ours":       {aliceToken, []string{"Host", "localhost.evil.test:" + port}, 403, "host"},
		"another address":      {aliceToken, []string{"Host", "192.0.2.1:" + port}, 403, "host"},
		"another name's port":  {aliceToken, []string{"Host", "proxy.test:80"}, 403, "host"},
		"Host with a user":     {aliceToken, []string{"Host", "localhost@evil.test"}, 403, "host"},
		"foreign Origin alone": {"", []string{"Origin", "https://evil.test"}, 403, "origin"},
	}
	for _, r := range requests {
		for name, wrong := range wrongs {
			a := w.do(wrong.token, r.method, r.path, r.body, wrong.header...)
			if a.status != wrong.want || r.method != "HEAD" && !strings.Contains(a.text, `"code":"`+wrong.code+`"`) {
				t.Errorf("%s %s with %s: %d %s, want %d %s", r.method, r.path, name, a.status, a.text, wrong.want, wrong.code)
			}
			for h := range a.header {
				if strings.HasPrefix(h, "Access-Control-") {
					t.Errorf("%s %s with %s: header %s", r.method, r.path, name, h)
				}
			}
			if got := a.header.Get("WWW-Authenticate"); (got != "") != (wrong.want == 401) {
				t.Errorf("%s with %s: WWW-Authenticate %q", r.path, name, got)
			}
		}
	}
	if got := len(w.server.sessions.sessions); got != 1 {
		t.Fatalf("%d sessions were started by requests that were refused", got-1)
	}
	for _, right := range [][]string{
		nil,
		{"Origin", w.base},
		{"Origin", w.base, "Sec-Fetch-Site", "same-origin"},
		{"Sec-Fetch-Site", "none"},
		{"Host", "localhost:" + port, "Origin", "http://localhost:" + port},
		{"Host", "LOCALHOST"},
		{"Host", "[::1]:9"}, // a forwarded port
		{"Host", "caisson.test"},
		{"Host", "proxy.test:443", "Origin", "https://proxy.test:443"},
	} {
		for _, r := range requests {
			if a := w.do(aliceToken, r.method, r.path, r.body, right...); a.status != r.status {
				t.Errorf("%s %s with %q: %d %s", r.method, r.path, right, a.status, a.text)
			}
		}
	}
	// Tokens are in no log, wherever a client put them.
	w.do("", "GET", "/sessions?token="+aliceToken, "").requireStatus(t, 401)
	w.do("", "GET", "/sessions/"+aliceToken+"?access_token="+bobToken, "").requireStatus(t, 401)
	w.do(bobToken, "GET", "/sessions?token="+aliceToken, "").requireStatus(t, 422)
	if len(logged.All()) == 0 {
		t.Error("nothing was logged")
	}
	for _, e := range logged.All() {
		if line := fmt.Sprint(e.Message, e.ContextMap()); strings.Contains(line, aliceToken) || strings.Contains(line, bobToken) {
			t.Errorf("logged: %s", line)
		}
	}
}

func TestPreflightAndForms(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	create := fmt.Sprintf(`{"workspace":%q}`, w.dir)
	a := w.do("", "OPTIONS", "/sessions", "", "Origin", "https://evil.test", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
	a.requireProblem(t, 403, "origin")
	for h := range a.header {
		if strings.HasPrefix(h, "Access-Control-") {
			t.Errorf("preflight is answered with %s", h)
		}
	}
	if a := w.do(aliceToken, "OPTIONS", "/sessions", ""); a.status != 405 || a.header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("OPTIONS of ours: %d, Allow %q", a.status, a.header.Get("Allow"))
	}
	// What a form can send without a preflight, and other spellings.
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json-patch+json", "text/json", "application/json; q=\"", "application/problem+json", "*/*"} {
		for _, body := range []string{create, ""} {
			if kind == "" && body == "" {
				continue
			}
			w.do(aliceToken, "POST", "/sessions", body, "Content-Type", kind).requireProblem(t, 415, "content_type")
		}
	}
	if n := len(w.server.sessions.sessions); n != 0 {
		t.Fatalf("%d sessions were started", n)
	}
	w.do(aliceToken, "POST", "/sessions", create, "Content-Type", "application/json; charset=utf-8").requireStatus(t, 201)
}

func TestRequestsThatAreNone(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	auth := "Host: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\n"
	for name, c := range map[string]struct {
		request string
		want    int
	}{
		"no Host":           {"GET /sessions HTTP/1.0\r\n\r\n", 403},
		"two Hosts":         {"GET /sessions HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n", 400},
		"two tokens":        {"GET /sessions HTTP/1.1\r\n" + auth + "Authorization: Bearer x\r\n\r\n", 401},
		"two lengths":       {"POST /sessions HTTP/1.1\r\n" + auth + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
		"large headers":     {"GET /sessions HTTP/1.1\r\n" + auth + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", 431},
		"many headers":      {"GET /sessions HTTP/1.1\r\n" + auth + strings.Repeat("X: x\r\n", 20_000) + "\r\n", 431},
		"a huge body":       {"POST /sessions HTTP/1.1\r\n" + auth + "Content-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n", 413},
		"a path":            {"GET /sessions/..%2f..%2fetc%2fpasswd HTTP/1.1\r\n" + auth + "\r\n", 404},
		"a path above":      {"GET /sessions/../healthz HTTP/1.1\r\n" + auth + "\r\n", 404},
		"a double slash":    {"GET //sessions HTTP/1.1\r\n" + auth + "\r\n", 404},
		"a NUL":             {"GET /sessions/%00 HTTP/1.1\r\n" + auth + "\r\n", 404},
		"another site":      {"GET http://evil.test/sessions HTTP/1.1\r\n" + auth + "\r\n", 403},
		"an unknown path":   {"GET /docs HTTP/1.1\r\n" + auth + "\r\n", 404},
		"an unknown method": {"BREW /sessions HTTP/1.1\r\n" + auth + "\r\n", 405},
		"CONNECT":           {"CONNECT localhost:80 HTTP/1.1\r\n" + auth + "\r\n", 404},
		"a wrong method":    {"PUT /sessions HTTP/1.1\r\n" + auth + "\r\n", 405},
		"the control":       {"GET /sessions HTTP/1.1\r\n" + auth + "\r\n", 200},
	} {
		if got, _ := w.sendRaw(c.request); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	big := `{"workspace":"` + strings.Repeat("x", maxBodyBytes) + `"}`
	whole := fmt.Sprintf("POST /sessions HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", auth, len(big), big)
	w.exchangeRaw(whole).requireProblem(t, 413, "too_large")
	chunked := fmt.Sprintf("POST /sessions HTTP/1.1\r\n%sContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", auth, len(big), big)
	if got, _ := w.sendRaw(chunked); got != 413 {
		t.Errorf("a large body in pieces: %d", got)
	}
	// Deep and strange JSON.
	for name, body := range map[string]string{
		"deep": strings.Repeat(`{"a":`, 100_000), "lists": strings.Repeat("[", 200_000), "number": "1e999999999", "bytes": "{\"workspace\":\"\xff\xfe\"}",
		"half": `{"workspace":"`, "type": `{"workspace":1}`, "unknown": `{"workspace":"/x","privileged":true}`, "nested": `{"workspace":"/x","limits":{"network":"host"}}`,
		"negative": `{"workspace":"/x","limits":{"pids":-1}}`, "fraction": `{"workspace":"/x","limits":{"pids":1.5}}`, "large": `{"workspace":"/x","limits":{"pids":1e300}}`,
	} {
		if a := w.post("/sessions", body); a.status != 400 && a.status != 422 {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	if len(w.server.sessions.sessions) != 0 {
		t.Error("a session was started")
	}
}

func TestHealthTellsNothing(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	a := w.do("", "GET", "/healthz", "").requireStatus(t, 200)
	if a.text != "ok\n" {
		t.Errorf("health says %q", a.text)
	}
	w.do("", "GET", "/healthz", "", "Host", "evil.test").requireStatus(t, 403)
	w.do("", "GET", "/metrics", "").requireStatus(t, 401)
	open := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.OpenMetrics = true })
	open.do("", "GET", "/metrics", "").requireStatus(t, 200)
	open.do("", "GET", "/sessions", "").requireStatus(t, 401)
}

// The body of a request without a token is not read, and no more bodies are
// held than requests are served at once.
func TestBodiesAreReadBehindTokenAndSlot(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	for name, c := range map[string]struct {
		token, method, path string
		slots               int // that are taken
		want                int
		read                bool
	}{
		"the open path":          {"", "POST", "/healthz", 0, 405, false},
		"no token":               {"", "POST", "/sessions", 0, 401, false},
		"no slot":                {aliceToken, "POST", "/sessions", maxRequests, 503, false},
		"no slot, to the stream": {aliceToken, "POST", "/sessions/x/events", maxRequests, 503, false},
		"a stream's":             {aliceToken, "GET", "/sessions/x/events", maxRequests, 400, false},
		"a GET's":                {aliceToken, "GET", "/sessions", 0, 400, false},
		"a HEAD's":               {aliceToken, "HEAD", "/sessions/x/events", 0, 400, false},
		"an upload's":            {aliceToken, "PUT", "/sandboxes/x/files", maxRequests, 404, false},
		"no token, to an upload": {"", "PUT", "/sandboxes/x/files", 0, 401, false},
		"another token's slots":  {bobToken, "POST", "/sessions", maxRequests, 422, true},
		"the control":            {aliceToken, "POST", "/sessions", maxRequests - 1, 422, true},
	} {
		t.Run(name, func(t *testing.T) {
			entered, leave := make(chan struct{}), make(chan struct{})
			mux := http.NewServeMux()
			mux.HandleFunc("GET /sandboxes", func(http.ResponseWriter, *http.Request) {
				entered <- struct{}{}
				<-leave
			})
			mux.HandleFunc("POST /sessions", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(422) })
			mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
			mux.HandleFunc(uploadRoute, func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(404) })
			h := w.server.guard.protectRoutes(mux)
			server := httptest.NewServer(h)
			defer server.Close()
			var held sync.WaitGroup
			for range c.slots {
				held.Go(func() {
					_, _ = send(t.Context(), server.Client(), server.URL, aliceToken, "GET", "/sandboxes", "")
				})
				<-entered
			}
			body := &countingReader{Reader: strings.NewReader(strings.Repeat(" ", 1<<19))}
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, body)
			r.Host, r.ContentLength = "localhost", 1<<19
			r.Header.Set("Authorization", "Bearer "+c.token)
			r.Header.Set("Content-Type", "application/json")
			got := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
			h.ServeHTTP(got, r)
			if got.Code != c.want || (body.n > 0) != c.read {
				t.Errorf("%d after reading %d bytes: %s", got.Code, body.n, got.Body)
			}
			close(leave)
			held.Wait()
		})
	}
}

// Connections without a token, and idle connections, don't keep anybody out. A
// request under way keeps its connection.
func TestConnectionsOfStrangers(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSession("bind")
	events := w.followEvents(id, "")
	events.until(record.KindSessionCreated)
	for name, request := range map[string]string{
		"nothing": "", "healthz": "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "no token": "GET /sessions HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"a token": "GET /sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + bobToken + "\r\n\r\n",
	} {
		var all []io.Closer
		for range 1100 {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
			_, _ = io.WriteString(c, request) // it may be closed already
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if a, err := send(ctx, client, w.base, aliceToken, "GET", "/sessions/"+id, ""); err != nil || a.status != 200 {
			t.Errorf("%s: a client with a token is kept out: %v", name, err)
		}
		cancel()
		for _, c := range all {
			_ = c.Close()
		}
	}
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	events.until(record.KindSessionEnded)
}

// A request that takes no body is refused at once if one is announced, though
// the connection stays open.
func TestBodiesThatNeverCome(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	id := w.startSession("bind")
	path := "/sessions/" + id + "/events"
	auth := " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\nContent-Type: application/json\r\n"
	for _, method := range []string{"GET", "HEAD"} {
		for _, length := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
			if got, header := w.sendRaw(method + " " + path + auth + length + "\r\n\r\n"); got != 400 || header.Get("Content-Type") != problemType {
				t.Errorf("%s with %s: %d %v", method, length, got, header)
			}
		}
	}
	if got, _ := w.sendRaw("GET /sessions/" + id + auth + "Content-Length: 0\r\n\r\n"); got != 200 {
		t.Errorf("the control: %d", got)
	}
	w.do(aliceToken, "GET", path, "{}").requireProblem(t, 400, "body")
}

type countingReader struct {
	io.Reader
	n int
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n += n
	return n, err
}

// deadlineRecorder is a recorder that takes deadlines, as connections do.
type deadlineRecorder struct{ *httptest.ResponseRecorder }

func (deadlineRecorder) SetReadDeadline(time.Time) error  { return nil }
func (deadlineRecorder) SetWriteDeadline(time.Time) error { return nil }

func TestListen(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "evil.test:0", "unix:relative", "nonsense"} {
		if l, err := Listen(t.Context(), address, false); err == nil {
			t.Errorf("listens on %s as %s", address, l.Addr())
			l.Close()
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "caisson.sock")
	l, err := Listen(t.Context(), "unix:"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if _, err := Listen(t.Context(), "unix:"+path, false); err == nil || !strings.Contains(err.Error(), "listens on it already") {
		t.Errorf("a second one: %v", err)
	}
	l.Close()
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	// What a killed server left is replaced, anything else is not.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err = Listen(t.Context(), "unix:"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix:"+path, false); err == nil {
		t.Error("a file was replaced")
	}
}

// TestUnixSocket uses the whole server over a unix socket.
func TestUnixSocket(t *testing.T) {
	w := newTestEnv(t, twoTurns)
	w.policy = "sandboxed"
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), "unix:"+path, false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(w.options())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- second.Serve(ctx, l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	client := &http.Client{Transport: transport}
	for _, c := range []struct {
		token, host string
		want        int
	}{{"", "localhost", 401}, {aliceToken, "evil.test", 403}, {aliceToken, "localhost", 201}} {
		a, err := send(t.Context(), client, "http://"+c.host, c.token, "POST", "/sessions", fmt.Sprintf(`{"workspace":%q}`, w.dir))
		if err != nil || a.status != c.want {
			t.Errorf("%+v: %d %s %v", c, a.status, a.text, err)
		}
	}
	transport.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTokens(t *testing.T) {
	value := strings.Repeat("x", 30)
	for name, tokens := range map[string][]Token{
		"none": nil, "short": {{Label: "a", Value: "short"}}, "space": {{Label: "a", Value: value + " "}}, "no label": {{Value: value}},
		"label": {{Label: "a:b", Value: value}}, "twice": {{Label: "a", Value: value}, {Label: "a", Value: strings.Repeat("y", 30)}},
		"unknown role": {{Label: "a", Value: value, Roles: []Role{RoleRead, "root"}}}, "no roles": {{Label: "a", Value: value, Roles: []Role{}}},
		"the role of no route": {{Label: "a", Value: value, Roles: []Role{roleNone}}}, "the role of any": {{Label: "a", Value: value, Roles: []Role{roleAny}}},
	} {
		o := (&testEnv{t: t, state: t.TempDir()}).options()
		o.Tokens = tokens
		_, err := New(o)
		if err == nil || strings.Contains(err.Error(), "xxx") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a, b := NewToken("a"), NewToken("a"); a.Value == b.Value || a.Validate() != nil || len(a.Value) < 50 {
		t.Errorf("made %q and %q", a.Value, b.Value)
	}
}
