package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// dispatcher is what the loop needs of tools.Dispatcher.
type dispatcher interface {
	// Definitions are the tools that this session may use, in a stable order.
	Definitions() []tools.Definition
	// Round runs all calls of one assistant message and returns one result
	// each, in request order. Its error ends the run: the loss of the
	// sandbox, an approver who is missing under --on-prompt fail, a record
	// that can't be written. Results are complete even then.
	Round(ctx context.Context, calls []tools.Call) ([]tools.Result, error)
}

// Options says what one turn needs. Model, Messages, Session and Turn are required.
type Options struct {
	Model Model
	// Dispatcher runs the tool calls. Nil offers no tools.
	Dispatcher dispatcher
	// Budget bounds the turn; the zero value sets no limits.
	Budget limits.Budget
	// System is the system prompt, see [SystemPrompt]. It becomes the first
	// message where History is empty and is ignored elsewhere. "" is none.
	System string
	// History is what came before this turn, recorded already; it is not
	// reported again. Calls in it that have no result get one that says so and
	// are never run. Empty for a new session.
	History []Message
	// Messages open the turn; the last one is the user's. They are reported
	// as [MessageAdded] right after [TurnStarted].
	Messages []Message
	// Session and Turn are the ids that calls and events carry.
	Session, Turn string
	// Emit is the one hook for events, called in order and from one
	// goroutine. Its error ends the turn with [StopTraceUnwritable], and it
	// is not called again. Nil discards events.
	Emit func(Event) error
	// Started is when the run began, from which Budget.WallTime counts; zero
	// means now.
	Started time.Time
	// MaxOutputTokens bounds one answer; zero leaves it to the provider.
	MaxOutputTokens int64
	// ContextWindow is the model's window in tokens. Near it old tool results
	// are shortened in what is sent, never in the history. Zero means
	// unknown: results are shortened only when the provider refuses.
	ContextWindow int64
	// NewID makes an id with the given prefix ("tu", "err"); nil means a ULID.
	NewID func(prefix string) string
	// Logger gets what a user must not see, such as what a provider said; nil discards.
	Logger *zap.Logger
}

// Outcome is how a turn ended. It is complete whatever happened: History has a
// result for every tool call.
type Outcome struct {
	Reason StopReason
	// Answer is the final text, or the last text there was where a limit or a
	// failure left none; "" where there never was one.
	Answer string
	// Truncated says that a limit ended it, or that the provider cut the answer.
	Truncated bool
	// Limit is set where Reason is StopLimit.
	Limit *limits.ExceededError
	Usage limits.Usage
	// History is everything, the initial messages included.
	History []Message
	// Err is the cause of a bad end, for the log.
	Err error
}

// ErrInvalid says that [Run] was called with [Options] that make no sense.
var ErrInvalid = errors.New("invalid loop options")

// validate reports the first field that is missing or out of bounds.
func (o Options) validate() error {
	switch {
	case o.Model == nil:
		return ErrNoModel
	case o.Session == "" || o.Turn == "":
		return fmt.Errorf("%w: session and turn need an id", ErrInvalid)
	case len(o.Messages) == 0 || o.Messages[len(o.Messages)-1].Role != RoleUser:
		return fmt.Errorf("%w: the last message must be the user's", ErrInvalid)
	case o.MaxOutputTokens < 0 || o.ContextWindow < 0:
		return fmt.Errorf("%w: negative token count", ErrInvalid)
	}
	if err := o.Budget.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
