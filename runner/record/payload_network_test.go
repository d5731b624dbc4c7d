package record

import "testing"

func TestWordsOfNetworks(t *testing.T) {
	for _, tt := range []struct {
		egress *Egress
		want   string
	}{
		{nil, "none"},
		{&Egress{Allow: []string{"tls://a.test"}, Unknown: "deny"}, "1 rule"},
		{&Egress{Allow: []string{"tls://a.test", "tls://b.test"}, Presets: []string{"go", "npm"}, Unknown: "prompt"}, "2 rules (presets go, npm), others as answered"},
		{&Egress{Unknown: "prompt"}, "as answered"},
	} {
		if got := tt.egress.Words("none"); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.egress, got, tt.want)
		}
	}
}

// Only a host without an address causes a warning.
func TestWarningOfUnresolved(t *testing.T) {
	for want, c := range map[string]NetworkClosed{
		"could not resolve a.test":                 {Host: "a.test:443", Ending: EndingResolve},
		"MCP server docs could not resolve a.test": {Host: "a.test:443", Ending: EndingResolve, Server: "docs"},
		"": {Host: "a.test:443", Ending: EndingDone},
	} {
		if got := c.Warning(); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
