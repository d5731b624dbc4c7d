package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
