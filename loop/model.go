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

// Model is one model of one provider. It is safe for concurrent use.
type Model interface {
	// Complete makes one model call. It passes the pieces of the answer to
	// onDelta, unless that is nil, as they arrive and from the calling
	// goroutine. If ctx is cancelled, the error wraps context.Cause(ctx); other
	// failures are a *ModelError. Complete makes one attempt: the loop repeats
	// what can be repeated, see [ModelError].Retryable.
	Complete(ctx context.Context, req Request, onDelta func(Delta)) (Response, error)
	// Info returns the identity of the model, for records.
	Info() ModelInfo
}

// ModelOptions is what the packages of all providers take to make a [Model]. Model is
// required; zero fields mean defaults.
type ModelOptions struct {
	// Model is the endpoint's name of the model.
	Model string
	// BaseURL is the endpoint's URL; "" means the provider's own.
	BaseURL string
	// APIKey is the key or bearer token; "" means none.
	APIKey string
	// Temperature is the sampling temperature; nil means the endpoint's default.
	Temperature *float64
	// MaxOutputTokens is the longest answer of a request that sets none, with the
	// model's reasoning; zero means the provider's default.
	MaxOutputTokens int64
	// ReasoningEffort is how much the model reasons, in the endpoint's words; "" means
	// its default.
	ReasoningEffort string
	// Headers are sent with each request, besides the usual ones.
	Headers map[string]string
	// HeaderTimeout is the longest wait for the first byte of an answer; zero means 10
	// minutes, because a model may have to be loaded, and a long answer without streaming
	// can take that long.
	HeaderTimeout time.Duration
	// IdleTimeout is the longest pause within an answer; zero means 2 minutes.
	IdleTimeout time.Duration
	// AnswerTimeout is the longest time from the headers of an answer to its end; zero
	// means an hour.
	AnswerTimeout time.Duration
	// MaxResponseBytes is the largest answer on the wire; zero means 64 MiB.
	MaxResponseBytes int64
	// HTTPClient is the HTTP client; nil means a new one for the model, which honours the
	// usual proxy variables. Nothing else is read from the environment.
	HTTPClient *http.Client
	// Logger receives notes about adapted requests and endpoints that differ from the
	// standard; nil discards them.
	Logger *zap.Logger
}

// ModelInfo identifies a model.
type ModelInfo struct {
	Provider string `json:"provider"` // openai, replay, …
	Model    string `json:"model"`
	BaseURL  string `json:"base_url,omitempty"`
	// ToolNameBytes is the longest name of a tool on the provider's wire; zero
	// means [tools.MaxNameBytes].
	ToolNameBytes int `json:"-"`
	// Recorded reports that answers and their usage are those of a recording: requests
	// cost nothing, and nothing is reserved for them.
	Recorded bool `json:"-"`
}

// String returns the provider and the model, "none" for the zero value.
func (m ModelInfo) String() string {
	if m.Model == "" {
		return "none"
	}
	return m.Provider + "/" + m.Model
}

// Request is the request of one model call. The adapter must not change or keep
// it.
type Request struct {
	Messages []Message
	// Tools are the tools offered to the model. If empty, the wire form has no
	// tools field.
	Tools []tools.Definition
	// MaxOutputTokens is the longest answer; zero means the provider's default.
	MaxOutputTokens int64
}

// Delta is a piece of an answer as it arrives. One field is set.
type Delta struct {
	Text string
	// ToolName is the name of a call. It is sent before the call's arguments
	// are complete.
	ToolName string
}

// Response is the complete answer of a model call.
type Response struct {
	// Message is an assistant message: text and tool uses in order.
	Message Message
	// Usage is the provider's count of tokens. Its cost is the one that the provider
	// reports, or nil; the loop prefers that of [Profile].Price.
	Usage limits.Usage
	// Finish is the finish reason that the provider reported, for records.
	Finish string
	// ID and Model are the values that the provider reported.
	ID, Model string
	// Truncated reports whether the provider cut the answer at its output limit.
	// A call at the end of a truncated answer is never run.
	Truncated bool
}

// ErrorClass is the class of a provider's failure.
type ErrorClass string

// The classes of a [ModelError].
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

// ModelError is the error of a failed model call. Its text may contain words of
// the provider and is for the log. Users see a message for the class, and
// ProviderMessage.
type ModelError struct {
	Class      ErrorClass
	Status     int           // HTTP status, or 0
	RetryAfter time.Duration // the delay that the provider asked for, or 0
	Err        error
	// Retryable reports whether the same request may succeed later. It is false if
	// the answer had begun.
	Retryable bool
	// Visible reports whether Err may be shown to users: it contains no words of
	// the provider.
	Visible bool
	// ProviderMessage is the provider's message about the request's model, key
	// or quota, for users; "" if there is none. It never contains the key.
	ProviderMessage string
}

// Error returns a message with the class and the cause.
func (e *ModelError) Error() string { return fmt.Sprintf("model %s: %v", e.Class, e.Err) }

// Unwrap returns e.Err.
func (e *ModelError) Unwrap() error { return e.Err }

// ErrQuota is wrapped by a [ModelError] of a quota that is used up and that time alone does
// not restore.
var ErrQuota = errors.New("the quota is used up")

// ErrNoModel is the error of [Run] for options without a model.
var ErrNoModel = errors.New("no model configured")
