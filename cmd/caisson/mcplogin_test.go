package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// loginRulesFor returns the rules of a server on this machine: its own origin, and
// more.
func loginRulesFor(t *testing.T, origins ...string) runner.EgressOptions {
	t.Helper()
	o := runner.EgressOptions{
		Policy: &rule.Policy{}, Private: map[string][]netip.Prefix{"127.0.0.1": {netip.MustParsePrefix("127.0.0.1/32")}},
		Budget: limits.EgressBudget{Bytes: 1 << 20, Upload: 1 << 20, Connections: 100, Hosts: 10},
	}
	for _, origin := range origins {
		r, err := rule.ParseEgress(origin + "/")
		if err == nil {
			r, err = r.WithMethods([]string{http.MethodGet, http.MethodPost})
		}
		must(t, err)
		o.Policy.Allow = append(o.Policy.Allow, r)
	}
	return o
}

// TestLoginRules: an authorization server at another origin gets requests only if the
// server's rules allow that. A metadata service never does.
func TestLoginRules(t *testing.T) {
	var issuer, named, authorize string
	var requests atomic.Int32
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	authorization := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		switch r.URL.Path {
		case "/.well-known/oauth-authorization-server":
			answer(w, map[string]any{
				"issuer": issuer, "authorization_endpoint": cmp.Or(authorize, issuer) + "/authorize", "token_endpoint": issuer + "/token",
				"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
			})
		case "/token":
			answer(w, map[string]any{"access_token": "the-token", "token_type": "Bearer"})
		}
	}))
	defer authorization.Close()
	issuer = authorization.URL
	var origin string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/.well-known/oauth-protected-resource/mcp":
			answer(w, map[string]any{"resource": origin + "/mcp", "authorization_servers": []string{named}})
		case r.URL.Path != "/mcp":
			http.NotFound(w, r)
		case r.Header.Get("Authorization") != "Bearer the-token":
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	origin = server.URL
	login := func(rules runner.EgressOptions) error {
		return obtainToken(t.Context(), oauth.LoginOptions{
			Server: oauth.Server{Name: "s", URL: origin + "/mcp", Config: oauth.Config{ClientID: "c"}, Store: tokenStore(t.TempDir())},
			Show: func(address, _ string) {
				u, _ := url.Parse(address)
				go func() {
					if res, err := http.Get(u.Query().Get("redirect_uri") + "?code=c&state=" + u.Query().Get("state")); err == nil {
						_ = res.Body.Close()
					}
				}()
			},
		}, rules)
	}

	named = issuer
	err := login(loginRulesFor(t, origin))
	denied, ok := errors.AsType[*loginDeniedError](err)
	if !ok || requests.Load() > 0 || denied.Origin() != issuer {
		t.Errorf("without a rule: %v, %d requests", err, requests.Load())
	}
	if err := login(loginRulesFor(t, origin, issuer)); err != nil || requests.Load() == 0 {
		t.Errorf("control, with a rule: %v, %d requests", err, requests.Load())
	}
	// The browser's requests are decided like this process's.
	authorize = "https://bank.example"
	requests.Store(0)
	if err := login(loginRulesFor(t, origin, issuer)); !errors.As(err, &denied) || denied.Origin() != authorize || requests.Load() != 1 {
		t.Errorf("authorization endpoint without a rule: %v, %d requests", err, requests.Load())
	}
	if err := login(loginRulesFor(t, origin, issuer, authorize)); err != nil {
		t.Errorf("control, with a rule: %v", err)
	}
	authorize = ""
	// The server's address has no rule for others, even if a name leads to it.
	requests.Store(0)
	named = "https://169.254.169.254"
	if err := login(loginRulesFor(t, origin, issuer)); err == nil || requests.Load() > 0 {
		t.Errorf("metadata service: %v, %d requests", err, requests.Load())
	}
	named = strings.Replace(issuer, "127.0.0.1", "localhost", 1)
	issuer = named
	if err := login(loginRulesFor(t, origin, named)); err == nil || requests.Load() > 0 { // the name has no private network
		t.Errorf("name of a private address: %v, %d requests", err, requests.Load())
	}
}
