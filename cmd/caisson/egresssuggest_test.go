package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
)

// TestSuggestionsOfServers: rules that an MCP server lacked are suggested for it, not
// for commands.
func TestSuggestionsOfServers(t *testing.T) {
	var list []egressSuggestion
	for _, p := range []record.NetworkDenied{
		{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed", Server: "docs"},
		{Host: "npm.corp:443", Way: "connect", Reason: "address", Addr: "10.1.2.3", Server: "docs"},
		{Host: "a.example:443", Way: "connect", Reason: "not_allowed", Server: "b: c"},
		{Host: "a.example:443", Way: "connect", Reason: "not_allowed", Count: 2},
		{Host: "a.example:443", Way: "connect", Reason: "not_allowed", Server: "b: c"},
		{Host: "evil.example:80", Way: "http", Reason: "address", Addr: "127.0.0.1", Server: "docs"},
	} {
		list = addSuggestion(list, p, nil)
	}
	var p page
	describeSuggestions(&p, list)
	want := `egress:
  allow:
    - tls://a.example  # not_allowed, 2 times
mcpServers:
  "b: c":
    egress:
      allow:
        - tls://a.example  # not_allowed, 2 times
  docs:
    egress:
      presets: [npm]
      private:
        npm.corp: ["10.1.2.3"]  # address, 1 times
# evil.example:80 of the MCP server docs: refused (address, 1 times); no rule of allow changes that
`
	if d := cmp.Diff(want, p.String()); d != "" {
		t.Error(d)
	}
	p.Reset()
	describeSuggestions(&p, addSuggestion(nil, record.NetworkDenied{Host: "evil.example:80", Way: "http", Reason: "address", Addr: "127.0.0.1", Server: "docs"}, nil))
	if want := "# evil.example:80 of the MCP server docs: refused (address, 1 times); no rule of allow changes that\n"; p.String() != want {
		t.Errorf("only a refusal: %q", p.String())
	}
}

// TestSuggestNotThePublicRegistry: the public registry isn't suggested if the user's
// own replaces it in a preset.
func TestSuggestNotThePublicRegistry(t *testing.T) {
	reach := &record.Egress{Presets: []string{"pip"}, Allow: []string{"https://pip.corp.test/simple/", "https://pypi.org/pypi/"}}
	denied := record.NetworkDenied{Host: "pypi.org:443", URL: "https://pypi.org/simple/x/", Way: "connect", Reason: "path", Method: "GET"}
	var p page
	describeSuggestions(&p, addSuggestion(nil, denied, reach))
	if want := "# pypi.org:443: refused (path, 1 times); the preset pip allows your own registry in its place\n"; p.String() != want {
		t.Errorf("%q, want %q", p.String(), want)
	}
}

// TestApplySuggestions: the rules for commands are in effect in the workspace, beside the
// user's other ones, and nothing is written twice.
func TestApplySuggestions(t *testing.T) {
	home := resolvePath(t.TempDir())
	workspace, file := filepath.Join(home, "app"), filepath.Join(home, "config.yaml")
	must(t, os.Mkdir(workspace, 0o755))
	must(t, os.WriteFile(file, []byte(`# mine
egress:
  presets: [go]
  allow: [{url: https://api.example/v1/, methods: [POST]}]
  private: {db.corp: [10.0.0.0/24]}
`), 0o600))
	a := &app{environ: environ{"HOME=" + home, "CAISSON_CONFIG=" + file}, stderr: io.Discard, terminal: func(any) bool { return false }}
	var list []egressSuggestion
	for _, p := range []record.NetworkDenied{
		{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed"},
		{Host: "api.example:443", Way: "connect", Reason: "method", Method: "PUT", URL: "https://api.example/v2/?key=1"},
		{Host: "db.corp:443", Way: "connect", Reason: "address", Addr: "10.0.1.5"},
		{Host: "npm.corp:443", Way: "connect", Reason: "address", Addr: "10.1.2.3"},
		{Host: "of.a.server:443", Way: "connect", Reason: "not_allowed", Server: "docs"},
		{Host: "metadata.example:80", Way: "http", Reason: "address", Addr: "169.254.169.254"},
		{Host: "a.example:443", Way: "connect", Reason: "not_allowed"},
		{Host: "b.example:443", Way: "connect", Reason: "method", Method: "PUT", URL: "https://b.example/${HOME}/"},
	} {
		list = addSuggestion(list, p, nil)
	}
	must(t, applyEgress(a, workspace, list))
	s, err := loadSettings(a, config.File{}, "")
	must(t, err)
	must(t, s.loadFor(workspace))
	got := s.conf.Egress
	for _, d := range []string{
		cmp.Diff(config.Names{"go", "npm"}, got.Presets),
		cmp.Diff(config.EgressRules{{URL: "https://api.example/v1/", Methods: []string{"POST"}}, {URL: "https://api.example/v2/", Methods: []string{"PUT"}}, {URL: "tls://a.example"}, {URL: "https://b.example/$%7BHOME%7D/", Methods: []string{"PUT"}}}, got.Allow),
		cmp.Diff(map[string][]string{"db.corp": {"10.0.0.0/24", "10.0.1.5"}, "npm.corp": {"10.1.2.3"}}, got.Private),
	} {
		if d != "" {
			t.Error(d)
		}
	}
	before, err := os.ReadFile(file)
	must(t, err)
	must(t, applyEgress(a, workspace, list))
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("written again: %v\n%s", err, after)
	}
	if err := applyEgress(a, filepath.Join(home, "gone"), list); err == nil {
		t.Errorf("a workspace that is gone: %v", err)
	}
}
