package safeurl

import (
	"slices"
	"strings"
	"testing"
)

// TestCredentialsAreNotShown checks that String removes each credential and that
// Secrets returns it.
func TestCredentialsAreNotShown(t *testing.T) {
	for raw, want := range map[string]string{
		"https://me:hunter22@host/v1":                      "https://host/v1",
		"https://hunter22@host/v1":                         "https://host/v1",
		"https://host/v1?api-version=2026-01&key=hunter22": "https://host/v1",
		"https://host/v1?hunter22":                         "https://host/v1",
		"https://me:hunter22@host:443/v1?a=b#f":            "https://host:443/v1#f",
		"tcp://me:hunter22@engine:2375":                    "tcp://engine:2375",
		"ssh://hunter22@engine":                            "ssh://engine",
		"http://me:hun%74er22@proxy:3128":                  "http://proxy:3128",
		"http://me:hunter22/x@proxy:3128":                  "http://proxy:3128",
		"http://me:hunter22?x@proxy:3128":                  "http://proxy:3128",
		"http://me:hunter22 x@proxy:3128":                  "http://proxy:3128",
		"http://me:hunter22@x@proxy:3128":                  "http://proxy:3128",
		"me:hunter22@proxy:3128":                           "proxy:3128",
		"hunter22@proxy":                                   "proxy",
		"https://[::1:hunter22@host/%zz?x=hunter22":        "https://host/%zz",
		"file:///a?key=hunter22":                           "file:///a",
	} {
		if got := String(raw); got != want {
			t.Errorf("%s is shown as %s, want %s", raw, got, want)
		}
		found := slices.ContainsFunc(Secrets(raw), func(s string) bool { return strings.Contains(s, "hunter22") && !strings.Contains(s, "://") })
		if !found {
			t.Errorf("%s: secrets %q", raw, Secrets(raw))
		}
	}
	if got := InText(`parse "http://me:hunter22 x@proxy": invalid character`); strings.Contains(got, "hunter22") {
		t.Errorf("in a text: %s", got)
	}
	if got := InText(`Get "https://me:hunter22@host/x?k=hunter22": dial tcp://a:hunter22@b:1, done`); strings.Contains(got, "hunter22") || !strings.HasSuffix(got, ", done") {
		t.Errorf("in a text: %s", got)
	}
}

// TestOtherURLsAreAsWritten checks that URLs without credentials are unchanged.
func TestOtherURLsAreAsWritten(t *testing.T) {
	for _, raw := range []string{
		"https://host/v1", "https://registry/@scope/name", "unix:///run/a@b.sock", "http://[::1]:11434/v1", "proxy:3128", "localhost", "", "HTTPS://Host/%7Ex", "https://host/x#a@b", "HTTPS://Host/@scope",
	} {
		if got := String(raw); got != raw {
			t.Errorf("%q became %q", raw, got)
		}
		if secrets := Secrets(raw); len(secrets) > 0 {
			t.Errorf("%q has secrets %q", raw, secrets)
		}
	}
	if got := Secrets("https://host/?api-version=2026-01-01"); len(got) > 0 {
		t.Errorf("a version is a secret: %q", got)
	}
	// A text may pass through InText more than once, and end in a URL that can't be read.
	once := InText("the engine tcp://127.0.0.1:1. Is it running? It is at tcp://[::1: no")
	if want := "the engine tcp://127.0.0.1:1. Is it running? It is at tcp://(unreadable): no"; once != want || InText(once) != want {
		t.Errorf("%q, then %q, want %q", once, InText(once), want)
	}
	if text := "see https://host/a and b@c.org, ok"; InText(text) != text {
		t.Errorf("%q became %q", text, InText(text))
	}
}

// TestSecrets checks the exact secrets of a URL, as written and decoded.
func TestSecrets(t *testing.T) {
	for raw, want := range map[string][]string{
		"https://me:hunt%65r@host/v1?key=a%2Fb&api-version=1": {"me:hunt%65r", "me:hunter", "hunt%65r", "hunter", "a%2Fb", "a/b"},
		"https://host/v1?key=hunter22#f":                      {"hunter22"},
		"https://token@host":                                  {"token"},
		"https://me:a%zz@host":                                {"me:a%zz", "a%zz"},
		"https://@host/y@z":                                   nil,
	} {
		if got := Secrets(raw); !slices.Equal(got, want) {
			t.Errorf("%s has secrets %q, want %q", raw, got, want)
		}
	}
}

// TestList checks the URLs of a list, also without a scheme.
func TestList(t *testing.T) {
	for raw, want := range map[string]string{
		"me:hunter22@a:4222": "a:4222",
		"nats://me:hunter22@a:4222, tls://me:hunter22@b:1": "nats://a:4222,tls://b:1",
		"a:4222,hunter22@b,me:hunter22@[::1]:4222":         "a:4222,b,[::1]:4222",
		"a:4222": "a:4222",
		"":       "",
	} {
		if got := List(raw); got != want {
			t.Errorf("%s is shown as %s, want %s", raw, got, want)
		}
	}
}
