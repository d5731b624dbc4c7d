package anthropic

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Options configures a model. Model is required. Nothing is read from the environment,
// except that the default HTTP client honours the usual proxy variables.
type Options struct {
	// Model is Anthropic's name of the model.
	Model string
	// BaseURL is the endpoint without its version; "" means [DefaultBaseURL].
	BaseURL string
	// APIKey is sent as x-api-key; "" means none.
	APIKey string
	// Temperature is the sampling temperature; nil means the model's default.
	Temperature *float64
	// MaxOutputTokens is the longest answer, with its reasoning, of a request that
	// sets none; zero means 32,000.
	MaxOutputTokens int64
	// ReasoningEffort is how much the model reasons, in the API's words; "" means the
	// model's default.
	ReasoningEffort string
	// ThinkingTokens is the budget of the model's reasoning, for models before 4.6;
	// zero means the model's default.
	ThinkingTokens int64
	// Headers are sent with each request, besides the usual ones.
	Headers map[string]string
	// HeaderTimeout is the longest wait for the first byte of an answer; zero
	// means 10 minutes.
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

// DefaultBaseURL is Anthropic's own endpoint.
const DefaultBaseURL = "https://api.anthropic.com"

// defaultMaxTokens is the default of Options.MaxOutputTokens.
const defaultMaxTokens = 32_000

// ErrInvalid is the error of [New] for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

// withDefaults returns valid options, with defaults for zero fields.
func (o Options) withDefaults() (Options, error) {
	if o.Model == "" {
		return o, fmt.Errorf("%w: no model name", ErrInvalid)
	}
	if o.MaxOutputTokens < 0 || o.ThinkingTokens < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	o.MaxOutputTokens = cmp.Or(o.MaxOutputTokens, defaultMaxTokens)
	if o.ThinkingTokens >= o.MaxOutputTokens {
		return o, fmt.Errorf("%w: a thinking budget of %d tokens leaves no answer within %d", ErrInvalid, o.ThinkingTokens, o.MaxOutputTokens)
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o, nil
}
