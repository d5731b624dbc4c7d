package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/server"
)

// open runs caisson open as the server's user.
func (s *served) open(env []string, args ...string) (status int, stdout, stderr string) {
	s.t.Helper()
	var out, errs bytes.Buffer
	d := newApp(make(chan os.Signal), func(int) {})
	d.stdout, d.stderr, d.requirements = &out, &errs, ""
	status = run(s.t.Context(), append([]string{"open"}, args...), append([]string{"HOME=" + s.home, "PATH=/usr/bin:/bin"}, env...), d)
	return status, out.String(), errs.String()
}

// pageUser is somebody's browser: it has one cookie, and sends what browsers send.
type pageUser struct {
	t                  *testing.T
	base, host, cookie string
}

// browse opens the address that a command printed, which must be on host.
func browse(t *testing.T, printed string) *pageUser {
	t.Helper()
	u, err := url.Parse(strings.TrimPrefix(strings.TrimSpace(printed), "open "))
	if err != nil || !strings.HasSuffix(u.Hostname(), "."+server.PageHost) || u.Path != "/login" || len(u.Fragment) != 16 {
		t.Fatalf("the address %q, %v", printed, err)
	}
	b := &pageUser{t: t, base: "http://127.0.0.1:" + u.Port(), host: u.Host}
	to := "/"
	if session := u.Query().Get("to"); session != "" {
		to = session
	}
	status, header, text := b.send(http.MethodPost, "/login", url.Values{"code": {u.Fragment}, "to": {to}})
	if status != http.StatusSeeOther || header.Get("Location") != to {
		t.Fatalf("the code leads to %d %q: %s", status, header.Get("Location"), text)
	}
	b.cookie, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	return b
}

func (b *pageUser) send(method, path string, form url.Values) (int, http.Header, string) {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, body)
	must(b.t, err)
	req.Host = b.host
	req.Header = http.Header{"Sec-Fetch-Site": {"same-origin"}, "Cookie": {b.cookie}}
	if form != nil {
		req.Header.Set("Origin", "http://"+b.host)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	must(b.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(b.t, err)
	return res.StatusCode, res.Header, string(text)
}

// fakeBrowser writes an xdg-open that notes its arguments and what it knows of BROWSER,
// and returns its directory and a function that waits for the note.
func fakeBrowser(t *testing.T, dir string) (bin string, opened func() string) {
	t.Helper()
	note := filepath.Join(t.TempDir(), "note")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "xdg-open"),
		[]byte("#!/bin/sh\necho \"$* $BROWSER $PWD\" >> "+note+".part\n/bin/mv "+note+".part "+note+"\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir, func() string {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if text, err := os.ReadFile(note); err == nil {
				return string(text)
			}
		}
		t.Fatal("no browser was opened")
		return ""
	}
}

// The commands sign a browser in, with an address that works once.
func TestOpen(t *testing.T) {
	s := startServe(t, "", "--open").up()
	port := s.base[strings.LastIndex(s.base, ":")+1:]
	log := s.log.String()
	if !strings.Contains(log, "\ncaisson: the page: run caisson open\n") {
		t.Errorf("the log says\n%s", log)
	}
	_, line, _ := strings.Cut(log, "\ncaisson: open ")
	line, _, _ = strings.Cut(line, "\n")
	b := browse(t, line)
	if status, _, text := b.send(http.MethodGet, "/", nil); status != 200 || !strings.Contains(text, s.root) {
		t.Errorf("signed in: %d %s", status, text)
	}
	if status, _, text := b.send(http.MethodGet, "/doctor", nil); status != 200 || !strings.Contains(text, "kernel") {
		t.Errorf("the doctor: %d %s", status, text)
	}
	if status, _, _ := b.send(http.MethodPost, "/login", url.Values{"code": {line[len(line)-16:]}}); status != http.StatusForbidden {
		t.Errorf("the code works again: %d", status)
	}
	id := s.begin(s.token(), `{"workspace":"one"}`)
	for _, args := range [][]string{{"last"}, {id}, {id[:len(id)-2], "--print"}, {"--url", s.base, "last"}, {"last", "--url", "http://localhost:" + port + "/"}} {
		status, stdout, stderr := s.open(nil, args...)
		if status != 0 || stderr != "" || !strings.Contains(stdout, "?to=/s/"+id+"#") {
			t.Errorf("%q: status %d, %q, %q", args, status, stdout, stderr)
		}
		browse(t, stdout)
	}
	other := filepath.Join(t.TempDir(), "token")
	elsewhere := filepath.Join(t.TempDir(), "trace.jsonl")
	must(t, errors.Join(os.WriteFile(other, []byte(strings.Repeat("x", 40)+"\n"), 0o600), os.WriteFile(elsewhere, nil, 0o600)))
	for name, tt := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no such session":       {[]string{"nope"}, exitInput, "there is no session nope. caisson trace ls lists them"},
		"a session elsewhere":   {[]string{elsewhere}, exitInput, "the page doesn't show " + elsewhere},
		"two sessions":          {[]string{"a", "b"}, exitUsage, "at most one session"},
		"nobody there":          {[]string{"--url", "http://127.0.0.1:1"}, exitFailed, "no server answers at http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused. Start one with caisson serve --root DIR --open"},
		"another token":         {[]string{"--token-file", other, "--url", s.base}, exitAuth, "doesn't know the token. Name the file"},
		"no token":              {[]string{"--token-file", other + "x"}, exitInput, "no such file or directory. Start a server"},
		"a socket":              {[]string{"--url", "unix:/run/x"}, exitInput, "browsers can't reach the socket unix:/run/x. Start the server with --listen 127.0.0.1:8717 too"},
		"no address":            {[]string{"--url", "ftp://x"}, exitUsage, `"ftp://x" is no address of a server`},
		"an address with paths": {[]string{"--url", s.base + "/login"}, exitUsage, "is no address of a server"},
		"a name with a user":    {[]string{"--url", "http://me@127.0.0.1:" + port}, exitUsage, "is no address of a server"},
	} {
		if status, stdout, stderr := s.open(nil, tt.args...); status != tt.status || !strings.Contains(stderr, tt.says) || stdout != "" {
			t.Errorf("%s: status %d, %q, %q", name, status, stdout, stderr)
		}
	}
	token := filepath.Join(s.home, ".local/state/caisson/serve.token")
	text, err := os.ReadFile(token + addressSuffix)
	if err != nil || string(text) != s.base+"\n" {
		t.Errorf("the address is noted as %q, %v", text, err)
	}
	s.stop()
	if _, err := os.Stat(token + addressSuffix); !os.IsNotExist(err) {
		t.Errorf("the address is left: %v", err)
	}
	if status, _, stderr := s.open(nil); status != exitInput || !strings.Contains(stderr, "there is no token for the page") {
		t.Errorf("without a server: status %d, %q", status, stderr)
	}
}

// What answers is told apart, and a token follows no redirect.
func TestOpenAsksOneServer(t *testing.T) {
	asked := 0
	answer := func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch asked {
		case 1:
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		case 2:
			fmt.Fprint(w, "hello")
		case 3:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"code":"role","detail":"x"}`)
		case 4:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":"overloaded","detail":"Later."}`)
		}
	}
	l, err := server.Listen(t.Context(), "127.0.0.1:0", false)
	must(t, err)
	h := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Second}
	go func() { _ = h.Serve(l) }()
	defer h.Close()
	u, err := parseAddress(l.Addr().String())
	must(t, err)
	for i, want := range []struct {
		status int
		says   string
	}{{exitFailed, "(status 307)"}, {exitFailed, "(status 200)"}, {exitAuth, "role read"}, {exitFailed, "refused: Later."}} {
		_, err := requestCode(t.Context(), u, "token")
		if e := describeError(err); e.Status != want.status || !strings.Contains(e.Cause, want.says) || asked != i+1 {
			t.Errorf("answer %d: %+v after %d requests", i+1, e, asked)
		}
	}
}

func TestPageAddresses(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:8717": "http://caisson.localhost:8717", "localhost:80": "http://caisson.localhost:80", "[::1]:8717": "http://caisson.localhost:8717", ":8717": "http://caisson.localhost:8717",
		"0.0.0.0:8717": "http://caisson.localhost:8717", "[::]:8717": "http://caisson.localhost:8717", "http://localhost": "http://caisson.localhost",
		"127.0.0.2:8717": "http://127.0.0.2:8717", "192.0.2.1:80": "http://192.0.2.1:80", "https://caisson.example.org/": "https://caisson.example.org", "https://127.0.0.1:9": "https://127.0.0.1:9",
	} {
		u, err := parseAddress(listen)
		if err != nil || pageBase(u, server.PageHost) != want {
			t.Errorf("%s: %v, %v, want %s", listen, u, err, want)
		}
	}
	for want, listen := range map[string][]string{config.DefaultListen: nil, "a:1": {"unix:/x", "a:1", "b:2"}, "unix:/x": {"unix:/x", "unix:/y"}} {
		if got := firstAddress(listen); got != want {
			t.Errorf("%q: %s, want %s", listen, got, want)
		}
	}
}

// A browser is opened only on a display, by a program that no workspace has, and without
// the user's choice of another program.
func TestOpensABrowser(t *testing.T) {
	s := startServe(t, "").up()
	dir := t.TempDir()
	bin, opened := fakeBrowser(t, filepath.Join(dir, "bin"))
	work, _ := fakeBrowser(t, filepath.Join(dir, "work"))
	t.Chdir(work)
	path := []string{"PATH=" + work + ":" + bin + ":/bin", "BROWSER=./evil"}
	display := append([]string{"DISPLAY=:0"}, path...)
	for _, quiet := range [][]string{path, append([]string{"DISPLAY=:0", "PATH=" + work + ":/nowhere"}, path[1])} {
		if status, stdout, stderr := s.open(quiet); status != 0 || !strings.HasPrefix(stdout, "open http://") {
			t.Errorf("%q: status %d, %q, %q", quiet, status, stdout, stderr)
		}
	}
	if status, _, _ := s.open(display, "--print"); status != 0 {
		t.Errorf("--print: status %d", status)
	}
	_, stdout, _ := s.open(display)
	if got, want := opened(), strings.TrimPrefix(strings.TrimSpace(stdout), "open ")+"  /\n"; got != want {
		t.Errorf("opened %q, want %q", got, want)
	}
}

// usePage answers the first question on a conversation's page, and then sends a message.
func usePage(t *testing.T, address string) {
	t.Helper()
	b := browse(t, address)
	u, err := url.Parse(address)
	must(t, err)
	session := u.Query().Get("to")
	question := regexp.MustCompile(`name="form" value="([^"]+)"><input type="hidden" name="turn" value="([^"]+)"><input type="hidden" name="request" value="([^"]+)"`)
	post := func(path string, form url.Values) {
		t.Helper()
		for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			status, _, text := b.send(http.MethodPost, session+path, form)
			if status == http.StatusSeeOther {
				return
			}
			if time.Now().After(deadline) || status != http.StatusConflict { // the first turn has to end
				t.Fatalf("POST %s: %d %s", path, status, text)
			}
		}
	}
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		status, _, text := b.send(http.MethodGet, session, nil)
		if m := question.FindStringSubmatch(text); m != nil {
			post("/answer", url.Values{"form": {m[1]}, "turn": {m[2]}, "request": {m[3]}, "decision": {"allow"}})
			post("/message", url.Values{"form": {m[1]}, "message": {"from\tthe page"}})
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page asks nothing: %d %s", status, text)
		}
	}
}

// A question of a conversation is answered on its page, and the terminal says by whom.
// Then the page sends a message, whose question the terminal answers.
func TestAConversationOnAPage(t *testing.T) {
	w := newWorld(t, "  - calls: [{tool: write_file, input: {path: one, content: x}}]\n  - text: the first end\n"+
		"  - calls: [{tool: write_file, input: {path: two, content: x}}]\n  - text: the second end\n")
	bin, opened := fakeBrowser(t, filepath.Join(w.dir, "../tools"))
	w.env = append(w.env, "DISPLAY=:0", "PATH="+bin+":/bin")
	done := make(chan struct{})
	go func() {
		defer close(done)
		address, _, _ := strings.Cut(opened(), " ")
		usePage(t, address)
	}()
	status, shown := chatIn(t, w, "xterm", []step{
		{"› ", "/open\r"},
		{"http://", ""},
		{"› ", "make it\r"},
		{"answered elsewhere: allow (once) by http:local/browser", ""},
		{"the first end", ""},
		{"› from    the page", ""},
		{"from http:local/browser", ""},
		{"? help", "y"},
		{"the second end", ""},
		{"› ", "/quit\r"},
	}, "--mode", "bind")
	<-done
	if status != 0 {
		t.Errorf("status %d\n%q", status, shown)
	}
	for _, name := range []string{"one", "two"} {
		if _, err := os.Stat(filepath.Join(w.dir, name)); err != nil {
			t.Errorf("%v\n%q", err, shown)
		}
	}
}
