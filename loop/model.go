package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Model is a provider's model. It is safe for concurrent use.
type Model interface {
	// Complete makes one model call. It passes pieces of the answer to onDelta, if not
	// nil, as they arrive and on the calling goroutine. If ctx is cancelled, the error
	// wraps context.Cause(ctx). Other failures are a *ModelError. It makes only one
	// attempt: the loop retries; see [ModelError].Retryable.
	Complete(ctx context.Context, req Request, onDelta func(Delta)) (Response, error)
	// Info identifies the model in records.
	Info() ModelInfo
}

// ModelOptions are the options of all providers' models. Model is required; zero fields
// mean defaults.
type ModelOptions struct {
	// Model is the endpoint's name for the model.
	Model string
	// BaseURL is the endpoint's URL; "" means the provider's own.
	BaseURL string
	// APIKey is the key or bearer token; "" means none.
	APIKey string
	// Temperature is the sampling temperature; nil means the endpoint's default.
	Temperature *float64
	// MaxOutputTokens bounds an answer, reasoning included, if the request sets no
	// bound; zero means the provider's default.
	MaxOutputTokens int64
	// ReasoningEffort is in the endpoint's words; "" means its default.
	ReasoningEffort string
	Headers         map[string]string
	// HeaderTimeout bounds the wait for an answer's first byte; zero means 10 minutes,
	// because a model may have to be loaded, and a long answer without streaming can
	// take that long.
	HeaderTimeout time.Duration
	// IdleTimeout bounds pauses within an answer; zero means 2 minutes.
	IdleTimeout time.Duration
	// AnswerTimeout bounds the time from an answer's headers to its end; zero means an
	// hour.
	AnswerTimeout time.Duration
	// MaxResponseBytes bounds an answer on the wire; zero means 64 MiB.
	MaxResponseBytes int64
	// HTTPClient is nil for a new client that honours the usual proxy variables.
	// Nothing else is read from the environment.
	HTTPClient *http.Client
	// Logger is told of adapted requests and of endpoints that differ from the
	// standard. It may be nil.
	Logger *zap.Logger
}

// ModelInfo identifies a model.
type ModelInfo struct {
	Provider string `json:"provider"` // openai, replay, …
	Model    string `json:"model"`
	BaseURL  string `json:"base_url,omitempty"`
	// ToolNameBytes is the provider's bound for tool names; zero means
	// [tools.MaxNameBytes].
	ToolNameBytes int `json:"-"`
	// Recorded means that answers and their usage come from a recording: requests cost
	// nothing, and nothing is reserved for them.
	Recorded bool `json:"-"`
}

// String returns provider/model, or "none" for the zero value.
func (m ModelInfo) String() string {
	if m.Model == "" {
		return "none"
	}
	return m.Provider + "/" + m.Model
}

// Request is a model call's request. Adapters must not change or keep it.
type Request struct {
	Messages []Message
	// Tools are the offered tools. If there are none, adapters send no tools field.
	Tools []tools.Definition
	// MaxOutputTokens bounds the answer; zero means the provider's default.
	MaxOutputTokens int64
}

// Delta is a piece of an answer. One field is set.
type Delta struct {
	Text string
	// ToolName is the name of a call whose arguments still follow.
	ToolName string
}

// Response is a model call's complete answer.
type Response struct {
	// Message is the assistant's: text and tool uses in order.
	Message Message
	// Usage is the provider's count of tokens. Its cost is the one that the provider
	// reports, or nil; the loop prefers [Profile].Price.
	Usage limits.Usage
	// Finish is the provider's finish reason, for records.
	Finish string
	// ID and Model are as the provider reported them.
	ID, Model string
	// Truncated reports whether the provider cut the answer at its output limit. A call
	// at the end of such an answer is never run.
	Truncated bool
}

// ErrorClass is the kind of a provider's failure.
type ErrorClass string

// The error classes.
const (
	ModelRateLimit       ErrorClass = "rate_limit"
	ModelAuth            ErrorClass = "auth"
	ModelServer          ErrorClass = "server_error"
	ModelNetwork         ErrorClass = "network"
	ModelContextOverflow ErrorClass = "context_overflow"
	ModelInvalidRequest  ErrorClass = "invalid_request"
	ModelCancelled       ErrorClass = "cancelled"
	ModelOther           ErrorClass = "other"
)

// ModelError is the error of a failed model call. Its text may contain the provider's
// words and is for the log. Users see a message for the class, and ProviderMessage.
type ModelError struct {
	Class      ErrorClass
	Status     int           // HTTP status, or 0
	RetryAfter time.Duration // the delay that the provider asked for, or 0
	Err        error
	// Retryable reports whether the same request may succeed later. It is false once
	// the answer has begun.
	Retryable bool
	// Visible reports whether Err has no words of the provider, so that users may see
	// it.
	Visible bool
	// ProviderMessage is the provider's message for users about the request's model,
	// key or quota, or "". It never contains the key.
	ProviderMessage string
}

func (e *ModelError) Error() string { return fmt.Sprintf("model %s: %v", e.Class, e.Err) }

func (e *ModelError) Unwrap() error { return e.Err }

// ErrQuota is wrapped by a [ModelError] if a quota is used up and time alone won't
// restore it.
var ErrQuota = errors.New("the quota is used up")

// ErrNoModel is [Run]'s error for options without a model.
var ErrNoModel = errors.New("no model configured")
