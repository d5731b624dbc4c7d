// Package oauth obtains, stores and refreshes the OAuth tokens of MCP servers over
// HTTP. The official Go SDK implements discovery, registration and the flows.
package oauth

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/oauth2"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Grant is how a token is obtained.
type Grant string

const (
	// GrantCode is the authorization code of a person who signs in with a browser.
	GrantCode Grant = "authorization_code"
	// GrantClient is the client's own credentials.
	GrantClient Grant = "client_credentials"
)

// Config is how Caisson identifies itself at an MCP server's authorization server.
type Config struct {
	// Grant "" means [GrantCode].
	Grant Grant
	// ClientID and ClientSecret identify a registered client. [GrantClient] needs
	// both. Without a ClientID, signing in registers a client.
	ClientID, ClientSecret string
	// Scopes replace the scopes that the server asks for. Nil replaces none.
	Scopes []string
}

// ErrSignIn reports that a server needs a token and accepts none that is stored: a
// person has to sign in.
var ErrSignIn = errors.New("a person has to sign in to the server")

type signInError struct{ reason string }

func (e *signInError) Error() string { return e.reason + ": " + ErrSignIn.Error() }

func (e *signInError) Is(target error) bool { return target == ErrSignIn }

const (
	requestTime  = 30 * time.Second
	maxBodyBytes = 1 << 20
	maxTextBytes = 400
)

var (
	errRedirect = errors.New("redirects of an authorization server are not followed")
	errTooLarge = errors.New("the response is larger than the limit")
	errNoTLS    = errors.New("https is required, except at a loopback address")
)

// NewClient returns the client for requests to authorization servers, which it
// sends with next. It follows no redirect, requires TLS except at loopback
// addresses, and bounds a response body to 1 MiB and a request to 30 s.
func NewClient(next http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: guard{next}, Timeout: requestTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
	}
}

type guard struct{ next http.RoundTripper }

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !isLoopback(req.URL) {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errNoTLS
	}
	res, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	res.Body = &boundedBody{res.Body, maxBodyBytes}
	return res, nil
}

func isLoopback(u *url.URL) bool {
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// boundedBody fails when the body is too large. [io.LimitReader] would end it silently.
type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// errorCode matches the codes of RFC 6749, section 5.2, and others like them.
var errorCode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z_]{1,40}$`) })

// explainError returns err with a bounded text on one line, and without what an
// authorization server wrote into a refusal, which may repeat secrets.
func explainError(err error) error {
	if err == nil || errors.Is(err, ErrSignIn) {
		return err
	}
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		code := "no known code"
		if errorCode().MatchString(refused.ErrorCode) {
			code = refused.ErrorCode
		}
		status := 0
		if refused.Response != nil {
			status = refused.Response.StatusCode
		}
		return fmt.Errorf("the authorization server refused the request for a token: status %d, %s", status, code)
	}
	return &shortError{err}
}

type shortError struct{ err error }

func (e *shortError) Error() string { return oneLine(e.err.Error()) }
func (e *shortError) Unwrap() error { return e.err }

func oneLine(text string) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	return utf8text.Clip(line, maxTextBytes)
}
