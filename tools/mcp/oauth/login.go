package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// ErrNotNeeded reports that a server accepts requests without a token.
var ErrNotNeeded = errors.New("the server asks for no token")

const callbackPath = "/callback"

// LoginOptions configure [Login].
type LoginOptions struct {
	Server
	// Port is the redirect's port on 127.0.0.1. Zero means any.
	Port int
	// Allow decides about a request to an endpoint of the authorization server. Nil
	// allows only the server's own origin. Client's rules must decide likewise.
	Allow func(endpoint rule.Target, method string) error
	// Show is called with the address to open in a browser, and the origin that
	// issues the token.
	Show func(address, issuer string)
}

// Login obtains a token for a server from its authorization server, where a person
// signs in, and stores it. It returns when the browser has come back to a listener
// on 127.0.0.1, or ctx ends. It returns [ErrNotNeeded] if the server needs no
// token.
func Login(ctx context.Context, o LoginOptions) error {
	req, res, err := o.probeServer(ctx, "")
	if err != nil {
		return explainError(err)
	}
	if res.StatusCode != http.StatusUnauthorized {
		_ = res.Body.Close()
		if res.StatusCode < 300 {
			return ErrNotNeeded
		}
		return fmt.Errorf("the server answers with status %d and does not ask for a token", res.StatusCode)
	}
	l, err := newRedirect(ctx, o.Port)
	if err != nil {
		_ = res.Body.Close()
		return err
	}
	defer l.closeListener()
	t := &storedToken{Server: o.Name, URL: o.URL}
	metadata := &metadataReader{next: o.Client.Transport, server: o.URL}
	client := *o.Client
	client.Transport = metadata
	o.Client, l.metadata = &client, metadata
	h, err := auth.NewAuthorizationCodeHandler(o.handlerConfig(l, t))
	if err != nil {
		_ = res.Body.Close()
		return err
	}
	if err := h.Authorize(ctx, req, res); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return explainError(err)
	}
	if _, res, err = o.probeServer(ctx, t.AccessToken); err != nil {
		return explainError(err)
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden {
		return fmt.Errorf("the server refuses the token of its authorization server with status %d", res.StatusCode)
	}
	return o.Store.withLock(ctx, o.Name, o.URL, func() error { return o.Store.saveToken(t) })
}

// handlerConfig returns the configuration of the flow, which leaves its result in
// t.
func (o LoginOptions) handlerConfig(l *redirect, t *storedToken) *auth.AuthorizationCodeHandlerConfig {
	cfg := &auth.AuthorizationCodeHandlerConfig{
		PreregisteredClient: newCredentials(o.Config), RedirectURL: l.url, RequestRefreshToken: true, AcceptUnadvertisedIss: true, Client: o.Client,
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			return l.fetchCode(ctx, args.URL, o)
		},
		NewTokenSource: func(_ context.Context, c *oauth2.Config, answer *oauth2.Token) (oauth2.TokenSource, error) {
			if !strings.EqualFold(answer.Type(), "bearer") {
				return nil, errors.New("the authorization server issued a token that is no bearer token")
			}
			t.TokenURL, t.AuthStyle, t.ClientID, t.ClientSecret = c.Endpoint.TokenURL, c.Endpoint.AuthStyle, c.ClientID, c.ClientSecret
			t.takeAnswer(answer)
			return oauth2.StaticTokenSource(answer), nil
		},
	}
	if cfg.PreregisteredClient == nil {
		cfg.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			RedirectURIs: []string{l.url}, TokenEndpointAuthMethod: "none", GrantTypes: []string{"authorization_code", "refresh_token"},
			ResponseTypes: []string{"code"}, ClientName: "Caisson",
		}}
	}
	if len(o.Config.Scopes) > 0 {
		cfg.ScopeFilter = func([]string) []string { return o.Config.Scopes }
	}
	return cfg
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"caisson","version":"0"}}}`

// probeServer sends the first message to the server, and ends the session that this
// may begin. The caller closes the body.
func (o LoginOptions) probeServer(ctx context.Context, token string) (*http.Request, *http.Response, error) {
	newRequest := func(method, body string) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, method, o.URL, strings.NewReader(body))
		if err == nil && token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		return req, err
	}
	req, err := newRequest(http.MethodPost, initialize)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := o.Client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	if session := res.Header.Get("Mcp-Session-Id"); session != "" {
		if end, err := newRequest(http.MethodDelete, ""); err == nil {
			end.Header.Set("Mcp-Session-Id", session)
			if ended, err := o.Client.Do(end); err == nil { // a server may refuse it
				_ = ended.Body.Close()
			}
		}
	}
	return req, res, nil
}

// metadataReader is a transport that reads the metadata of the authorization
// server, which the SDK doesn't pass on. It encodes the metadata anew, so that the
// SDK reads it in the same way.
type metadataReader struct {
	next   http.RoundTripper
	server string // URL of the MCP server
	// found is nil without metadata. The SDK then guesses endpoints at one origin.
	found *oauthex.AuthServerMeta
}

func (m *metadataReader) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := m.next.RoundTrip(req)
	if !strings.Contains(req.URL.Path, "/.well-known/oauth-authorization-server") && !strings.Contains(req.URL.Path, "/.well-known/openid-configuration") {
		return res, err
	}
	m.found = nil
	if err != nil || res.StatusCode != http.StatusOK {
		return res, err
	}
	defer func() { _ = res.Body.Close() }()
	var found oauthex.AuthServerMeta
	if err := json.NewDecoder(res.Body).Decode(&found); err != nil {
		return nil, fmt.Errorf("read metadata of the authorization server: %w", err)
	}
	// The MCP server would get another origin's code. Require the issuer that comes
	// with the code: it tells whether the code is meant for the server.
	if token := originOf(found.TokenEndpoint); token == originOf(m.server) && token != originOf(found.AuthorizationEndpoint) {
		found.AuthorizationResponseIssParameterSupported = true
	}
	text, err := json.Marshal(found)
	if err != nil {
		return nil, err
	}
	m.found, res.Body, res.ContentLength = &found, io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return res, nil
}

// originOf returns the origin of a URL, or the zero Origin if it is invalid.
func originOf(address string) rule.Origin {
	t, _ := rule.ParseTarget(address)
	return t.Origin
}

// checkEndpoints checks the endpoints of a login and returns the origin that issues
// the token.
func (o LoginOptions) checkEndpoints(authorization string, found *oauthex.AuthServerMeta) (issuer string, err error) {
	token := authorization
	if found != nil {
		token = found.TokenEndpoint
	}
	for _, e := range []struct{ address, method string }{{authorization, http.MethodGet}, {token, http.MethodPost}} {
		t, err := rule.ParseTarget(e.address)
		switch {
		case err != nil:
		case t.Scheme != "https" && !isLoopback(t.URL()):
			err = errNoTLS
		case o.Allow != nil:
			err = o.Allow(t, e.method)
		case t.Origin != originOf(o.URL):
			err = errors.New(t.Origin.String() + " isn't the server's own origin: if you trust it, add it to the server's egress.allow")
		}
		if err != nil {
			return "", fmt.Errorf("endpoint of the authorization server: %w", err)
		}
		issuer = t.Origin.String()
	}
	return issuer, nil
}

// redirect is the listener that a browser comes back to.
type redirect struct {
	url, host string
	metadata  *metadataReader
	server    *http.Server
	state     atomic.Pointer[string] // of the login, once it has begun
	outcomes  chan outcome
}

// outcome is what a browser comes back with.
type outcome struct {
	result *auth.AuthorizationResult
	err    error
}

// newRedirect listens only on 127.0.0.1.
func newRedirect(ctx context.Context, port int) (*redirect, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for the browser: %w", err)
	}
	r := &redirect{
		host: l.Addr().String(), url: "http://" + l.Addr().String() + callbackPath,
		outcomes: make(chan outcome, 1),
	}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 32 << 10}
	go func() { _ = r.server.Serve(l) }() // until closeListener
	return r, nil
}

func (r *redirect) closeListener() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errors.New("the browser is slow"))
	defer cancel()
	_ = r.server.Shutdown(ctx) // lets the page that the browser waits for go out
	_ = r.server.Close()
}

// fetchCode shows an authorization URL and returns what the browser comes back
// with.
func (r *redirect) fetchCode(ctx context.Context, address string, o LoginOptions) (*auth.AuthorizationResult, error) {
	issuer, err := o.checkEndpoints(address, r.metadata.found)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	state := u.Query().Get("state")
	r.state.Store(&state)
	o.Show(u.String(), issuer)
	select {
	case out := <-r.outcomes:
		return out.result, out.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ServeHTTP refuses a request without the state of this login. It changes nothing
// then: any page in a browser can send one.
func (r *redirect) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	q := req.URL.Query()
	state := r.state.Load()
	switch {
	case req.Method != http.MethodGet || req.URL.Path != callbackPath || req.Host != r.host:
		http.Error(w, "not found", http.StatusNotFound)
		return
	case state == nil || *state == "" || q.Get("state") != *state:
		http.Error(w, "This is not the answer to the request of caisson.", http.StatusBadRequest)
		return
	}
	out := outcome{result: &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}}
	page := "The browser's part is done: your terminal shows the outcome. You can close this page."
	if out.result.Code == "" {
		reason := "without a code"
		if code := q.Get("error"); errorCode().MatchString(code) {
			reason = "with " + code
		}
		out = outcome{err: errors.New("the authorization server came back " + reason)}
		page = "Signing in failed. You can close this page."
	}
	select {
	case r.outcomes <- out:
	default: // it has answered
	}
	_, _ = fmt.Fprintln(w, page)
}
