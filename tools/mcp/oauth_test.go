package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

const accessToken = "an-access-token-of-the-test"

// serveWithOAuth serves an MCP server with two tools, one of which repeats the token, and an authorization server that
// issues [accessToken] to anyone.
func serveWithOAuth(t *testing.T) *recordingServer {
	s := sdkHTTPServer(t)
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "sent: " + r.Extra.Header.Get("Authorization")}}}, nil
		})
	served := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	var origin string
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+accessToken {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		served.ServeHTTP(w, r)
	})
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"resource": origin + "/mcp", "authorization_servers": []string{origin}})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": origin, "authorization_endpoint": origin + "/authorize", "token_endpoint": origin + "/token",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
		})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"access_token": accessToken, "token_type": "Bearer", "expires_in": 3600})
	})
	server := serveHTTP(t, mux)
	origin = server.URL
	return server
}

// startOAuth starts the server under a store of tokens.
func startOAuth(t *testing.T, store *oauth.Store, s Server) *harness {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return startHarness(t, map[string]serverFunc{}, func(o *Options) {
		o.Servers, o.Tokens = append(o.Servers, s), store
		o.HTTPClient = func(Server) (*http.Client, error) { return &http.Client{Transport: transport}, nil }
	})
}

// useEcho calls the tool that repeats the token.
func useEcho(t *testing.T, h *harness) {
	t.Helper()
	out, err := h.call(t.Context(), "a/echo", `{}`)
	if err != nil || outputText(out) != "sent: Bearer [hidden]" {
		t.Errorf("%q, %v; %+v", outputText(out), err, eventsOf[ServerFailed](h))
	}
}

func TestOAuthClientCredentials(t *testing.T) {
	s := serveWithOAuth(t)
	h := startOAuth(t, nil, Server{Name: "a", URL: s.URL + "/mcp", OAuth: oauth.Config{Grant: oauth.GrantClient, ClientID: "c", ClientSecret: "s"}})
	useEcho(t, h)
}

// TestOAuthStoredToken: without a token, a server fails at once and is not started again. With a login's token it runs.
func TestOAuthStoredToken(t *testing.T) {
	s, store := serveWithOAuth(t), oauth.NewStore(t.TempDir())
	server := Server{Name: "a", URL: s.URL + "/mcp", OAuth: oauth.Config{ClientID: "c"}}
	began := time.Now()
	h := startOAuth(t, store, server)
	failed := eventsOf[ServerFailed](h)
	if len(failed) != 1 || !failed[0].GivenUp || !errors.Is(failed[0].Err, oauth.ErrSignIn) || !strings.Contains(failed[0].Err.Error(), oauth.ErrSignIn.Error()) {
		t.Fatalf("without a token: %+v", failed)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the failure took %v", took)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var browser sync.WaitGroup
	err := oauth.Login(t.Context(), oauth.LoginOptions{
		Server: oauth.Server{Name: server.Name, URL: server.URL, Config: server.OAuth, Store: store, Client: oauth.NewClient(transport)},
		Show: func(address, _ string) {
			u, _ := url.Parse(address)
			browser.Go(func() {
				res, err := (&http.Client{Transport: transport}).Get(u.Query().Get("redirect_uri") + "?code=c&state=" + u.Query().Get("state"))
				if err == nil {
					_ = res.Body.Close()
				}
			})
		},
	})
	browser.Wait()
	if err != nil {
		t.Fatal(err)
	}
	useEcho(t, startOAuth(t, store, server))
	// Authorization of the configuration is used as it is.
	own := server
	own.Headers = map[string]string{"authorization": "Bearer mine"}
	if failed := eventsOf[ServerFailed](startOAuth(t, store, own)); len(failed) == 0 || errors.Is(failed[0].Err, oauth.ErrSignIn) {
		t.Errorf("with a header: %+v", failed)
	}
}

// TestOAuthTokenStaysAtOrigin: a redirect to another origin gets no token.
func TestOAuthTokenStaysAtOrigin(t *testing.T) {
	var got []string
	var mu sync.Mutex
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Header.Get("Authorization"))
	}))
	t.Cleanup(thief.Close)
	s := serveWithOAuth(t)
	inner, redirect := s.Config.Handler, false
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		away := redirect && r.Header.Get("Authorization") != ""
		mu.Unlock()
		if away {
			http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
			return
		}
		inner.ServeHTTP(w, r)
	})
	h := startOAuth(t, nil, Server{Name: "a", URL: s.URL + "/mcp", OAuth: oauth.Config{Grant: oauth.GrantClient, ClientID: "c", ClientSecret: "s"}})
	useEcho(t, h)
	mu.Lock()
	redirect = true
	mu.Unlock()
	if out, err := h.call(t.Context(), "a/echo", `{}`); err == nil {
		t.Errorf("a redirected call succeeded: %q", outputText(out))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) > 0 {
		t.Errorf("the other origin got %q", got)
	}
}
