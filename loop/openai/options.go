package openai

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Options configures a model of an endpoint. Model is required. Nothing is read
// from the environment, except that the default HTTP client honours the usual proxy
// variables.
type Options struct {
	// Model is the endpoint's name of the model.
	Model string
	// API is the endpoint's API; "" means [Chat].
	API API
	// BaseURL is the endpoint up to and including its version, such as
	// http://localhost:11434/v1; "" means [DefaultBaseURL].
	BaseURL string
	// APIKey is the bearer token; "" means none.
	APIKey string
	// Provider is the name of the provider in records; "" means "openai".
	Provider string
	// Stream requests answers in pieces.
	Stream bool
	// Temperature is the sampling temperature; nil means the endpoint's
	// default.
	Temperature *float64
	// MaxOutputTokens is the longest answer of a request that sets none; zero
	// means the endpoint's default.
	MaxOutputTokens int64
	// ReasoningEffort is how much the model reasons, in the endpoint's words; ""
	// means the endpoint's default.
	ReasoningEffort string
	// Headers are sent with each request, besides the usual ones.
	Headers map[string]string
	// SendReasoning sends the model's earlier reasoning with each request. Some
	// endpoints require it and some refuse it.
	SendReasoning bool
	// HeaderTimeout is the longest wait for the first byte of an answer; zero
	// means 10 minutes, because a long answer without streaming can take that
	// long.
	HeaderTimeout time.Duration
	// IdleTimeout is the longest pause within an answer; zero means 2 minutes.
	IdleTimeout time.Duration
	// AnswerTimeout is the longest time from the headers of an answer to its end; zero
	// means an hour.
	AnswerTimeout time.Duration
	// MaxResponseBytes is the largest answer on the wire; zero means 64 MiB.
	MaxResponseBytes int64
	// HTTPClient is the HTTP client; nil means a new one for the model.
	HTTPClient *http.Client
	// Logger receives notes about endpoints that differ from the standard; nil
	// discards them.
	Logger *zap.Logger
}

// API is one of the two APIs of these endpoints.
type API string

// The APIs. OpenAI's models since GPT-6 call tools in Responses alone; most other
// endpoints know only Chat.
const (
	Chat      API = "chat"
	Responses API = "responses"
)

// DefaultBaseURL is OpenAI's own endpoint.
const DefaultBaseURL = "https://api.openai.com/v1"

// ErrInvalid is the error of [New] for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

// withDefaults returns valid options, with defaults for zero fields.
func (o Options) withDefaults() (Options, error) {
	if o.Model == "" {
		return o, fmt.Errorf("%w: no model name", ErrInvalid)
	}
	o.API = cmp.Or(o.API, Chat)
	if o.API != Chat && o.API != Responses {
		return o, fmt.Errorf("%w: unknown API %q", ErrInvalid, o.API)
	}
	if o.Provider == "" {
		o.Provider = "openai"
	}
	if o.MaxOutputTokens < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o, nil
}
