package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// TestServeResumeOnlyTightens: a client's requests at resuming are checked like at the
// start, and the last applied preset stays.
func TestServeResumeOnlyTightens(t *testing.T) {
	s := startServe(t, `
limits: {max_rounds: 10}
models:
  fast: {provider: replay, model: /nowhere}
serve:
  tokens:
    alice: {env: ALICE, roles: [admin]}
    bob: {env: BOB, roles: [read, approve]}
`).up()
	alice, bob := strings.Repeat("a", 40), strings.Repeat("b", 40)
	id := s.begin(alice, `{"workspace":"one","limits":{"max_rounds":3}}`)
	s.end(alice, id)
	at := "/sessions/" + id + "/resume"
	if status, text := s.do(bob, "POST", at, `{}`); status != 403 {
		t.Errorf("without the role run: %d %s", status, text)
	}
	if status, text := s.do(strings.Repeat("c", 40), "POST", at, `{}`); status != 401 {
		t.Errorf("with an unknown token: %d %s", status, text)
	}
	for body, says := range map[string]string{
		`{"limits":{"max_rounds":11}}`:     "above the server's limit of 10",
		`{"policy":"ci"}`:                  "calls of class write would have the mode",
		`{"policy":"allow-all"}`:           `"location":"body.policy"`,
		`{"image":"debian"}`:               "not one that clients may name",
		`{"model":"replay//etc/passwd"}`:   "not one that clients may name",
		`{"workspace":"/etc"}`:             `"location":"body`,
		`{"mode":"bind"}`:                  `"location":"body`,
		`{"backend":"runc"}`:               `"location":"body`,
		`{"user":{"admin":true},"id":"x"}`: `"location":"body`,
	} {
		if status, text := s.do(alice, "POST", at, body); status != 422 || !strings.Contains(text, says) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	for _, step := range []struct{ body, want string }{{`{"policy":"readonly"}`, "default+readonly"}, {`{}`, "default+readonly"}, {`{"policy":"strict"}`, "default+strict"}, {`{}`, "default+strict"}} {
		status, text := s.do(alice, "POST", at, step.body)
		var v server.Session
		if err := json.Unmarshal([]byte(text), &v); err != nil || status != 200 || v.Policy != step.want {
			t.Fatalf("%s: %d %s", step.body, status, text)
		}
		s.end(alice, id)
	}
	state := filepath.Join(s.home, ".local/state/caisson")
	for _, name := range []string{
		"..", "%2e%2e", "..%2f" + id, "..%2f..%2f..%2fetc", id + "%2f..%2f" + id, id + "%00", strings.ToLower(id), "last", id[:12],
		"%2f" + strings.ReplaceAll(strings.TrimPrefix(sessiondir.Path(state, id), "/"), "/", "%2f"), "ses_00000000000000000000000000",
	} {
		if status, text := s.do(alice, "POST", "/sessions/"+name+"/resume", `{}`); status != 404 && status != 422 && status != 400 {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, text := s.do(alice, "POST", at, `{}`); status != 200 { // the control: no attempt has harmed it
		t.Errorf("resumed: %d %s", status, text)
	}
}

// TestServeResumeBelowItsRoots: sessions of another server with the same state
// directory, on workspaces below no root, don't exist for clients. Nor are they resumed
// behind a symlink that replaced the workspace.
func TestServeResumeBelowItsRoots(t *testing.T) {
	s := startServe(t, "").up()
	id := s.begin(s.token(), `{"workspace":"two/three"}`)
	s.end(s.token(), id)
	for _, kind := range []string{"control", "link"} {
		if kind == "link" {
			dir := filepath.Join(s.root, "two/three")
			must(t, errors.Join(os.Rename(dir, dir+"-old"), os.Symlink("/etc", dir)))
		}
		status, text := s.do(s.token(), "POST", "/sessions/"+id+"/resume", `{}`)
		if kind == "control" {
			if status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			s.end(s.token(), id)
		} else if status != 422 || !strings.Contains(text, "not at or below a root") {
			t.Errorf("behind a link: %d %s", status, text)
		}
	}
	foreign := s.begin(s.token(), `{"workspace":"one"}`)
	s.end(s.token(), foreign)
	record := filepath.Join(sessiondir.Path(filepath.Join(s.home, ".local/state/caisson"), foreign), "trace.jsonl")
	text, err := os.ReadFile(record)
	if err == nil {
		err = os.WriteFile(record, bytes.ReplaceAll(text, fmt.Appendf(nil, "%q", filepath.Join(s.root, "one")), []byte(`"/etc"`)), 0o600)
	}
	must(t, err)
	if status, text := s.do(s.token(), "POST", "/sessions/"+foreign+"/resume", `{}`); status != 404 || strings.Contains(text, "/etc") {
		t.Errorf("on another workspace: %d %s", status, text)
	}
}
