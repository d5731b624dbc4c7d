package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Model is one model of one provider. It is safe for concurrent use.
type Model interface {
	// Complete makes one call. Deltas of the answer go to onDelta (may be
	// nil) as they arrive, from the calling goroutine. Cancelling ctx ends it
	// with an error that wraps context.Cause(ctx). Other failures are a
	// *ModelError. It retries by itself what may be retried, and never after
	// a response has begun.
	Complete(ctx context.Context, req Request, onDelta func(Delta)) (Response, error)
	// Info names the model for records.
	Info() ModelInfo
}

// ModelInfo names a model.
type ModelInfo struct {
	Provider string `json:"provider"` // openai, replay, …
	Model    string `json:"model"`
	BaseURL  string `json:"base_url,omitempty"`
	// ToolNameBytes bounds the names of tools on the provider's wire; zero means
	// [tools.MaxNameBytes].
	ToolNameBytes int `json:"-"`
}

// Request is one model call. The adapter must not change or keep it.
type Request struct {
	Messages []Message
	// Tools are offered; empty means that the wire has no tools field.
	Tools []tools.Definition
	// MaxOutputTokens bounds the answer; zero leaves it to the provider.
	MaxOutputTokens int64
}

// Delta is a piece of an answer as it arrives. One field is set.
type Delta struct {
	Text string
	// ToolName is set when a call's name is known, before its arguments are.
	ToolName string
}

// Response is the whole answer of a model call.
type Response struct {
	// Message is an assistant message: text and tool uses in order.
	Message Message
	Usage   limits.Usage
	// Finish is the provider's word, for records; nothing is decided by it
	// but that "length" in the middle of a call never runs the call.
	Finish string
	// ID and Model are what the provider said.
	ID, Model string
	// Truncated says that the provider cut the answer at its output limit.
	Truncated bool
}

// ErrorClass classes a provider's failure.
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

// ModelError is a failure of a provider. Its text may hold what the provider
// said and is for the log; users see the class, a generic sentence, and Said.
type ModelError struct {
	Class      ErrorClass
	Status     int           // HTTP status, 0 where there was none
	RetryAfter time.Duration // what the provider asked for, 0 where it did not
	Err        error
	// Visible says that Err is our own words, and may be shown to users.
	Visible bool
	// ProviderMessage is the provider's message about the request's model, key or quota,
	// without the key, for users; "" if there is none.
	ProviderMessage string
}

// Error gives the class and the cause.
func (e *ModelError) Error() string { return fmt.Sprintf("model %s: %v", e.Class, e.Err) }

// Unwrap gives the cause.
func (e *ModelError) Unwrap() error { return e.Err }

// ErrNoModel says that no model was configured.
var ErrNoModel = errors.New("no model configured")
