package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzCheckJSON compares the strict reader with encoding/json: what it accepts
// is JSON, with keys made of the characters in ours.
func FuzzCheckJSON(f *testing.F) {
	seeds := []string{
		`{}`, `{"decision":"allow"}`, `{"decision":"deny","decision":"allow"}`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"deci\u017fion":"allow"}`,
		`[`, `{"a":1}x`, "\xff", `{"A":1}`, strings.Repeat("[", 100), `"\ud800"`, `{"":1}`, `1e999`, ` {"a" : true } `,
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if checkJSON(data) != nil {
			return
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			t.Fatalf("takes %q, which is no JSON", data)
		}
		var v any
		if err := json.Unmarshal(data, &v); err == nil && !allKeysMatch(v) {
			t.Fatalf("takes a key that is none of ours: %q", data)
		}
	})
}

func allKeysMatch(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if !jsonKey().MatchString(k) || !allKeysMatch(e) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(v, func(e any) bool { return !allKeysMatch(e) })
	}
	return true
}

// FuzzRequests sends possible requests to every path. Each is answered, as JSON
// or with a problem, and only a valid one starts a session.
func FuzzRequests(f *testing.F) {
	seeds := []struct{ method, path, body string }{
		{"POST", "/sessions", `{"workspace":"/x"}`},
		{"POST", "/sessions", `{"workspace":"/x","limits":{"pids":1}}`},
		{"GET", "/sessions?limit=0&before=x", ""},
		{"GET", "/sessions/ses_00000000000000000000000000/events?after=-1", ""},
		{"POST", "/sessions/ses_00000000000000000000000000/turns/trn_x/confirmations/00", `{"decision":"allow"}`},
		{"POST", "/sessions/x/apply", `{"discard":true}`},
		{"GET", "/sessions/x/values/..%2fy", ""},
		{"DELETE", "/sessions/%00", ""},
		{"GET", "/sessions/%zz", ""},
		{"PUT", "/sandboxes/x/files?path=/tmp&path=%00", "x"},
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s.method, s.path, s.body)
	}
	w := &testEnv{state: f.TempDir(), root: f.TempDir(), turns: "  - text: Done.\n", policy: "default", backend: newFakeBackend()}
	s, err := New(w.options())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close(nil) })
	f.Fuzz(func(t *testing.T, method, path, body string) {
		req, err := http.NewRequest(method, "http://localhost/", strings.NewReader(body))
		if err != nil {
			return
		}
		u, err := req.URL.Parse(path)
		if err != nil || u.Host != "localhost" {
			return
		}
		req.URL, req.Host = u, "localhost"
		req.Header.Set("Authorization", "Bearer "+aliceToken)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		out := httptest.NewRecorder()
		s.Handler().ServeHTTP(deadlines{out}, req)
		if out.Code >= 500 && out.Code != 503 {
			t.Fatalf("%s %s %q: %d %s", method, path, body, out.Code, out.Body)
		}
		if out.Code >= 400 && (out.Header().Get("Content-Type") != problemType || method != "HEAD" && !json.Valid(out.Body.Bytes())) {
			t.Fatalf("%s %s %q: %d is no problem: %s", method, path, body, out.Code, out.Body)
		}
		if len(s.sessions.sessions) != 0 {
			t.Fatalf("%s %s %q started a session", method, path, body)
		}
	})
}

// FuzzAccept: the first of the two types in Accept is sent.
func FuzzAccept(f *testing.F) {
	for _, s := range []string{"", "*/*", "application/x-tar", "application/x-tar;q=0, */*;q=0.1", "text/html", "application/octet-stream, application/x-tar", "a/b;q=\"", ",", "APPLICATION/X-TAR; q=1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		wanted, ok := acceptsArchive([]string{accept})
		named := strings.Contains(strings.ToLower(accept), archiveType)
		if wanted && (!ok || !named) || ok && !wanted && strings.TrimSpace(accept) != "" && !strings.Contains(accept, "*") && !strings.Contains(strings.ToLower(accept), fileType) {
			t.Fatalf("%q: archive %t, %t", accept, wanted, ok)
		}
	})
}

// deadlines is a recorder that takes deadlines.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error  { return nil }
func (deadlines) SetWriteDeadline(time.Time) error { return nil }
