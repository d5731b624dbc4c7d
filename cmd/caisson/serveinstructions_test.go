package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools/approval"
)

// firstRequest starts a session on the workspace one with a message. It returns the
// system prompt and the rest of the model's request.
func (s *served) firstRequest(requests <-chan string) (system, rest string) {
	s.t.Helper()
	id := s.begin(s.token(), `{"workspace":"one","model":"main"}`)
	defer s.do(s.token(), "DELETE", "/sessions/"+id, "")
	if status, text := s.do(s.token(), "POST", "/sessions/"+id+"/turns", `{"message":"hello"}`); status != http.StatusAccepted {
		s.t.Fatalf("%d %s", status, text)
	}
	var request struct {
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal([]byte(<-requests), &request); err != nil || len(request.Messages) < 2 || request.Messages[0].Role != "system" {
		s.t.Fatalf("request %+v: %v", request, err)
	}
	for _, m := range request.Messages[1:] {
		rest += m.Content + "\n"
	}
	return request.Messages[0].Content, rest
}

// serveModel is a model that answers "Done.". It delivers the requests that it gets.
func serveModel(t *testing.T) (url string, requests <-chan string) {
	t.Helper()
	got := make(chan string, 1)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- string(text)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"message":{"content":"Done."},"finish_reason":"stop"}]}`)
	}))
	t.Cleanup(model.Close)
	return model.URL, got
}

// TestServeInstructions: the system prompt of sessions over HTTP has the operator's
// texts and the workspace's trusted files as they were when trusted, and nothing else
// of a workspace or client.
func TestServeInstructions(t *testing.T) {
	url, requests := serveModel(t)
	s := startServe(t, fmt.Sprintf("instructions: OPERATOR TEXT\nstream: false\nmodels: {main: {provider: openai, model: m, max_retries: 0, base_url: %q}}\n", url+"/v1")).up()
	write := func(path, text string) approval.TrustedFile {
		t.Helper()
		full := filepath.Join(s.root, "one", path)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.RemoveAll(full), os.WriteFile(full, []byte(text), 0o600)))
		sum := sha256.Sum256([]byte(text))
		return approval.TrustedFile{Path: path, SHA256: hex.EncodeToString(sum[:])}
	}
	must(t, os.WriteFile(filepath.Join(s.home, ".config/caisson/AGENTS.md"), []byte("USER TEXT"), 0o600))
	check := func(when string, operator, data, absent []string) {
		t.Helper()
		system, rest := s.firstRequest(requests)
		for _, want := range append(operator, "OPERATOR TEXT", "USER TEXT") {
			if !strings.Contains(system, want) {
				t.Errorf("%s: the system prompt lacks %q", when, want)
			}
		}
		for _, text := range append(data, absent...) {
			if strings.Contains(system, text) {
				t.Errorf("%s: the system prompt has %q", when, text)
			}
		}
		for _, text := range data {
			if !strings.Contains(rest, text) {
				t.Errorf("%s: the model does not get %q as data", when, text)
			}
		}
		for _, text := range absent {
			if strings.Contains(rest, text) {
				t.Errorf("%s: the model gets %q", when, text)
			}
		}
	}

	top, nested := write("AGENTS.md", "TOP TEXT"), write("store/AGENTS.md", "NESTED TEXT")
	check("untrusted", nil, []string{"TOP TEXT"}, []string{"NESTED TEXT"})
	must(t, approval.NewTrust(filepath.Join(s.home, ".local/state/caisson/trust.json")).Add(filepath.Join(s.root, "one"), nil, top, nested))
	write("new/AGENTS.md", "NEW TEXT")
	check("trusted, with a new one", []string{"TOP TEXT", "NESTED TEXT"}, nil, []string{"NEW TEXT"})
	write("store/AGENTS.md", "NESTED ORDER")
	write("AGENTS.md", "TOP ORDER")
	check("changed", nil, []string{"TOP ORDER"}, []string{"NESTED ORDER", "NESTED TEXT"})

	// Symlinks: out of the workspace to the trusted text, and to a secret.
	outside := filepath.Join(filepath.Dir(s.root), "outside")
	for name, text := range map[string]string{"top": "TOP TEXT", "secret": "SECRET TEXT", "store/AGENTS.md": "NESTED TEXT"} {
		writeFile(t, filepath.Join(outside, name), text, 0o600)
	}
	for _, target := range []string{"top", "secret"} {
		for link, to := range map[string]string{"AGENTS.md": target, "store": "store"} {
			link = filepath.Join(s.root, "one", link)
			must(t, errors.Join(os.RemoveAll(link), os.Symlink(filepath.Join(outside, to), link)))
		}
		check("a symlink to "+target, nil, nil, []string{"TOP TEXT", "SECRET TEXT", "NESTED TEXT"})
	}
	write("AGENTS.md", "TOP TEXT")
	check("as it was again", []string{"TOP TEXT"}, nil, []string{"NESTED TEXT"})

	for _, field := range []string{`"instructions":"CLIENT"`, `"instruction_files":["/etc/passwd"]`} {
		s.wants(s.token(), `{"workspace":"one","model":"main",`+field+`}`, http.StatusUnprocessableEntity, "unexpected property")
	}
}
