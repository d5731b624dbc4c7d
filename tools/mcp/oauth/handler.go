package oauth

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
)

// Server identifies an MCP server. Client sends the requests to its authorization
// server. See [NewClient].
type Server struct {
	// Name and URL are as configured. A token is bound to both.
	Name, URL string
	Config    Config
	Store     *Store
	Client    *http.Client
}

// Handler authorizes the requests to one server without a person: with the stored
// token, which it refreshes, or with the client's credentials. It is safe for
// concurrent use.
type Handler struct {
	server Server
	client *extauth.ClientCredentialsHandler // for [GrantClient]

	mu   sync.Mutex
	held *storedToken
	// forced is the token obtained last because the server refused another one.
	forced string
	issued []string
}

var _ auth.OAuthHandler = (*Handler)(nil)

// NewHandler returns the handler for a server. Its error is about the configuration.
func NewHandler(s Server) (*Handler, error) {
	h := &Handler{server: s}
	if s.Config.Grant != GrantClient {
		return h, nil
	}
	var err error
	h.client, err = extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{Credentials: newCredentials(s.Config), HTTPClient: s.Client})
	return h, err
}

func newCredentials(c Config) *oauthex.ClientCredentials {
	if c.ClientID == "" {
		return nil
	}
	out := &oauthex.ClientCredentials{ClientID: c.ClientID}
	if c.ClientSecret != "" {
		out.ClientSecretAuth = &oauthex.ClientSecretAuth{ClientSecret: c.ClientSecret}
	}
	return out
}

// Redact returns text without the tokens that the handler has held. A nil Handler
// changes nothing.
func (h *Handler) Redact(text string) string {
	if h == nil {
		return text
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.issued {
		text = strings.ReplaceAll(text, v, "[hidden]")
	}
	return text
}

// keepSecrets remembers values for [Handler.Redact]. The caller holds mu.
func (h *Handler) keepSecrets(values ...string) {
	for _, v := range values {
		if v != "" && !slices.Contains(h.issued, v) {
			h.issued = append(h.issued, v)
		}
	}
}

// TokenSource implements [auth.OAuthHandler]. It returns nil if there is no token,
// and an [ErrSignIn] if a token has expired and can't be refreshed.
func (h *Handler) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		return h.clientToken(ctx)
	}
	if h.held == nil || !h.held.isValid() {
		stored, err := h.server.loadToken()
		if err != nil || stored == nil {
			return nil, err
		}
		if err := h.renewToken(ctx, ""); err != nil {
			return nil, err
		}
	}
	return oauth2.StaticTokenSource(&oauth2.Token{AccessToken: h.held.AccessToken}), nil
}

// clientToken returns the token for the client's credentials, or nil before one was
// obtained. The caller holds mu.
func (h *Handler) clientToken(ctx context.Context) (oauth2.TokenSource, error) {
	source, err := h.client.TokenSource(ctx)
	if err != nil || source == nil {
		return nil, explainError(err)
	}
	t, err := source.Token()
	if err != nil {
		return nil, explainError(err)
	}
	h.keepSecrets(t.AccessToken)
	return oauth2.StaticTokenSource(t), nil
}

// Authorize implements [auth.OAuthHandler]. It returns an [ErrSignIn] if a person
// has to sign in.
func (h *Handler) Authorize(ctx context.Context, req *http.Request, res *http.Response) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		if len(h.server.Config.Scopes) > 0 {
			useScopes(res, h.server.Config.Scopes)
		}
		// The SDK refreshes with this context as long as the token is used.
		return explainError(h.client.Authorize(context.WithoutCancel(ctx), req, res))
	}
	defer func() {
		_, _ = io.Copy(io.Discard, res.Body) // so that the connection can be used again
		_ = res.Body.Close()
	}()
	if res.StatusCode == http.StatusForbidden {
		if challengeParam(res, "error") == "insufficient_scope" {
			return &signInError{"the token lacks a scope that the server asks for"}
		}
		return nil // the request is repeated, and its status counts
	}
	refused := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	if refused != "" && refused == h.forced {
		return &signInError{"the server refuses a token that has just been issued"}
	}
	if err := h.renewToken(ctx, refused); err != nil {
		return err
	}
	if refused != "" {
		h.forced = h.held.AccessToken
	}
	return nil
}

// renewToken makes the handler hold a valid token. That is the stored one if
// another process has refreshed it. refused is the token that the server refused,
// or "". The caller holds mu.
func (h *Handler) renewToken(ctx context.Context, refused string) error {
	s := h.server
	return s.Store.withLock(ctx, s.Name, s.URL, func() error {
		h.held = nil
		t, err := s.loadToken()
		switch {
		case err != nil:
			return err
		case t == nil:
			return &signInError{"there is no token for the server"}
		}
		h.keepSecrets(t.secretValues()...)
		if !t.isValid() || t.AccessToken == refused {
			if err := s.refreshToken(ctx, t); err != nil {
				return err
			}
			h.keepSecrets(t.secretValues()...)
		}
		h.held = t
		return nil
	})
}

// loadToken returns the stored token, or nil if the configured client has none.
func (s Server) loadToken() (*storedToken, error) {
	t, err := s.Store.loadToken(s.Name, s.URL)
	if t != nil && s.Config.ClientID != "" && t.ClientID != s.Config.ClientID {
		return nil, err
	}
	return t, err
}

// refreshToken replaces a token and stores the new one. It removes the token if the
// authorization server refuses for good. The caller holds the token's lock.
func (s Server) refreshToken(ctx context.Context, t *storedToken) error {
	if t.RefreshToken == "" {
		return &signInError{"the token has expired, or is refused, and can't be refreshed"}
	}
	cfg := oauth2.Config{ClientID: t.ClientID, ClientSecret: t.ClientSecret, Endpoint: oauth2.Endpoint{TokenURL: t.TokenURL, AuthStyle: t.AuthStyle}}
	// Don't cancel a refresh: if the request has been sent, a single-use refresh
	// token would be lost. The client bounds its time.
	ctx = context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, s.Client)
	answer, err := cfg.TokenSource(ctx, &oauth2.Token{RefreshToken: t.RefreshToken}).Token()
	refused, isRefused := errors.AsType[*oauth2.RetrieveError](err)
	switch {
	case isRefused && refused.ErrorCode == "invalid_grant": // for good
		if err := os.Remove(s.Store.tokenPath(s.Name, s.URL)); err != nil {
			return err
		}
		return &signInError{"the authorization server has withdrawn the token (invalid_grant)"}
	case err != nil:
		return explainError(err)
	}
	t.takeAnswer(answer)
	return s.Store.saveToken(t)
}

// challengeParam returns a parameter of the response's Bearer challenge, or "".
func challengeParam(res *http.Response, name string) string {
	list, err := oauthex.ParseWWWAuthenticate(res.Header.Values("WWW-Authenticate"))
	if err != nil {
		return ""
	}
	for _, c := range list {
		if c.Scheme == "bearer" && c.Params[name] != "" {
			return c.Params[name]
		}
	}
	return ""
}

func useScopes(res *http.Response, scopes []string) {
	challenge := `Bearer scope="` + strings.Join(scopes, " ") + `"`
	if u := challengeParam(res, "resource_metadata"); u != "" && !strings.ContainsAny(u, `"\`) {
		challenge += `, resource_metadata="` + u + `"`
	}
	res.Header.Set("WWW-Authenticate", challenge)
}
