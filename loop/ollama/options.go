package ollama

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Options configures a model. Model is required. Nothing is read from the environment,
// except that the default HTTP client honours the usual proxy variables.
type Options struct {
	// Model is Ollama's name of the model, such as qwen3:8b.
	Model string
	// BaseURL is the server without a path; "" means [DefaultBaseURL].
	BaseURL string
	// APIKey is the bearer token of a server that wants one; "" means none.
	APIKey string
	// ContextWindow is the number of tokens for which the server reserves memory, sent
	// as num_ctx; zero means the server's default, which is often too short for an agent.
	ContextWindow int64
	// Stream requests answers in pieces.
	Stream bool
	// Temperature is the sampling temperature; nil means the model's default.
	Temperature *float64
	// MaxOutputTokens is the longest answer of a request that sets none; zero means no
	// bound but the context window.
	MaxOutputTokens int64
	// ReasoningEffort is how much the model thinks: none, or a word of the model such as
	// low, medium and high, which count as on for models that know no words; "" means
	// the model's default.
	ReasoningEffort string
	// Headers are sent with each request, besides the usual ones.
	Headers map[string]string
	// HeaderTimeout is the longest wait for the first byte of an answer; zero means 10
	// minutes, since a model may have to be loaded first.
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
	// Logger receives notes about adapted requests; nil discards them.
	Logger *zap.Logger
}

// DefaultBaseURL is a server on this machine.
const DefaultBaseURL = "http://127.0.0.1:11434"

// ErrInvalid is the error of [New] for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

// withDefaults returns valid options, with defaults for zero fields.
func (o Options) withDefaults() (Options, error) {
	if o.Model == "" {
		return o, fmt.Errorf("%w: no model name", ErrInvalid)
	}
	if o.ContextWindow < 0 || o.MaxOutputTokens < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o, nil
}
