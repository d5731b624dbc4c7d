package openai

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/safeurl"
)

// Options says which model of which endpoint to use. Model is required;
// nothing is read from the environment, except that the default HTTP client
// honours the usual proxy variables.
type Options struct {
	// Model is the name that the endpoint knows.
	Model string
	// BaseURL is the endpoint up to and including its version, such as
	// http://localhost:11434/v1; "" means [DefaultBaseURL].
	BaseURL string
	// APIKey is sent as the bearer token; "" sends none.
	APIKey string
	// Provider names the provider in records; "" means "openai".
	Provider string
	// Stream asks for the answer piece by piece.
	Stream bool
	// Temperature is sent where it is set.
	Temperature *float64
	// MaxOutputTokens bounds an answer where the request does not; zero
	// leaves it to the endpoint.
	MaxOutputTokens int64
	// Price turns tokens into cost; nil means unknown.
	Price *Price
	// SendReasoning sends reasoning that the model gave back to it; some
	// endpoints need that and some refuse it. Off by default.
	SendReasoning bool
	// MaxRetries is how often a request that failed before its answer began
	// is sent again; nil means 2. Zero and more are valid.
	MaxRetries *int
	// MaxRetryDelay is the longest wait before one retry. An endpoint that
	// asks for more is not asked again. Zero means 2 minutes.
	MaxRetryDelay time.Duration
	// HeaderTimeout bounds the wait for the first byte of an answer; zero
	// means 10 minutes, which a long answer without streaming can need.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the silence within an answer; zero means 2 minutes.
	IdleTimeout time.Duration
	// MaxResponseBytes bounds one answer on the wire; zero means 64 MiB.
	MaxResponseBytes int64
	// HTTPClient replaces the default client; nil means one of its own.
	HTTPClient *http.Client
	// Logger gets notes on endpoints that differ from the standard; nil discards.
	Logger *zap.Logger
}

// Price is what tokens cost, in US dollars for a million of them. Input that was
// cached costs CachedInput.
type Price struct {
	Input, CachedInput, Output float64
}

// DefaultBaseURL is OpenAI's own endpoint.
const DefaultBaseURL = "https://api.openai.com/v1"

// Defaults of Options.
const (
	defaultRetries       = 2
	defaultRetryDelay    = 2 * time.Minute
	defaultHeaderTimeout = 10 * time.Minute
	defaultIdleTimeout   = 2 * time.Minute
	// A 128k-token answer streamed one token an event is about 30 MB.
	defaultResponseBytes = 64 << 20
)

// ErrInvalid says that [New] was called with [Options] that make no sense.
var ErrInvalid = errors.New("invalid model options")

// withDefaults validates and fills in what was left out.
func (o Options) withDefaults() (Options, error) {
	if o.Model == "" {
		return o, fmt.Errorf("%w: no model name", ErrInvalid)
	}
	if o.BaseURL == "" {
		o.BaseURL = DefaultBaseURL
	}
	u, err := url.Parse(o.BaseURL)
	switch {
	case err != nil:
		return o, fmt.Errorf("%w: the base URL can't be parsed", ErrInvalid) // and is not repeated: it may hold a secret
	case u.User != nil:
		return o, fmt.Errorf("%w: the base URL holds credentials; give them as the key", ErrInvalid)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return o, fmt.Errorf("%w: base URL %q is not an http or https URL, such as %s", ErrInvalid, safeurl.String(o.BaseURL), DefaultBaseURL)
	}
	if o.Provider == "" {
		o.Provider = "openai"
	}
	if o.MaxRetries == nil {
		o.MaxRetries = new(defaultRetries)
	}
	if *o.MaxRetries < 0 || o.MaxOutputTokens < 0 || o.MaxRetryDelay < 0 ||
		o.HeaderTimeout < 0 || o.IdleTimeout < 0 || o.MaxResponseBytes < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	o.MaxRetryDelay = cmp.Or(o.MaxRetryDelay, defaultRetryDelay)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, defaultHeaderTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.MaxResponseBytes = cmp.Or(o.MaxResponseBytes, defaultResponseBytes)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o, nil
}
