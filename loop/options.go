package loop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

// dispatcher is the part of dispatch.Dispatcher that the loop needs.
type dispatcher interface {
	// Definitions returns the tools that the session may use, in a stable order.
	Definitions() []tools.Definition
	// Round runs all calls of one assistant message and returns one result per
	// call, in the order of the calls. An error ends the run, for example if the
	// sandbox is lost, an approver is required and missing, or a record can't
	// be written. The results are complete even then.
	Round(ctx context.Context, calls []tools.Call) ([]tools.Result, error)
}

// Options configures one turn. Profiles and Messages, or Calls, are required, and
// Session and Turn.
type Options struct {
	// Profiles are the models of the turn. Each call is sent to the first one. If that
	// fails before its answer began, the others are asked in order, and the one that
	// failed is not asked again for five minutes. After a refused key, or a context
	// overflow that shortening does not cure, it is not asked again in the turn. A
	// request that is invalid, or was cancelled, ends the turn.
	Profiles []Profile
	// Calls are run by a turn without a model, which ends with their results: their
	// Name and Raw, as of a model's answer. Profiles, System and Messages are ignored.
	Calls []ToolUse
	// Dispatcher runs the tool calls. If nil, no tools are offered.
	Dispatcher dispatcher
	// Budget bounds the turn; the zero value has no limits.
	Budget limits.Budget
	// Ledger bounds the requests of this and other sessions together; nil does not. It
	// counts no requests to models with [ModelInfo].Recorded set.
	Ledger Ledger
	// System is the system prompt, see [SystemPrompt]; "" means none. It becomes
	// the first message if History is empty and is ignored otherwise.
	System boundary.Text
	// History is the conversation before this turn. Its messages are not
	// reported. Calls in it without a result are never run; they get a result
	// that reports the interruption. Messages that the view's summary stands for are
	// not in it, see [Summary.TrimHistory].
	History []Message
	// View is that of the conversation's earlier turns; the turn changes it. Nil is a
	// new one.
	View *View
	// Messages are the first messages of the turn; the last one is the user's.
	// They are reported as [MessageAdded] after [TurnStarted].
	Messages []Message
	// Unfinished continues the turn whose messages are the last ones of History; nil
	// begins one. Messages are then those that still follow, and may be none.
	Unfinished *Unfinished
	// Session and Turn are the IDs for calls and events.
	Session, Turn string
	// Emit receives the events, in order and from one goroutine. If it returns
	// an error, the turn ends with [StopTraceUnwritable] and Emit is not called
	// again. If Emit is nil, events are discarded.
	Emit func(Event) error
	// Started is the start of the run, from which Budget.WallTime counts; zero
	// means now.
	Started time.Time
	// NewID returns a new ID with the given prefix ("tu" or "err"); nil means
	// ULIDs.
	NewID func(prefix string) string
	// Logger receives details that users must not see, such as a provider's
	// error messages; nil discards them.
	Logger *zap.Logger
}

// Unfinished is a turn that another process began. Its start is not reported again. The
// calls of its last answer need a result, see [AnswerInterrupted].
type Unfinished struct {
	// Start is the index of its first message in [Options].History.
	Start int
	// Used is its use so far.
	Used limits.Usage
}

// Outcome is the outcome of a turn. It is always complete: History has a result
// for every tool call.
type Outcome struct {
	Reason StopReason
	// Answer is the last text of the model in this turn, or "". Closing reports whether
	// it is the answer of the completion that closed the turn.
	Answer  string
	Closing bool
	// Truncated reports whether a limit ended the turn or the provider cut the
	// answer.
	Truncated bool
	// Limit is the limit that was reached if Reason is StopLimit.
	Limit *limits.ExceededError
	Usage limits.Usage
	// Estimate counted against limits of tokens and cost beside Usage, because
	// no provider counted it.
	Estimate limits.Usage
	// History is [Options].History with the messages of the turn. Results that were
	// shortened are shortened in it, and messages that the view's summary stands for
	// are left out: [MessageAdded] had them whole.
	History []Message
	// Err is the cause of a failure, for the log.
	Err error
}

// ErrInvalid is the error of [Run] for invalid [Options].
var ErrInvalid = errors.New("invalid loop options")

// validate returns an error for the first field that is missing or out of bounds.
func (o Options) validate() error {
	switch {
	case len(o.Profiles) == 0 && len(o.Calls) == 0:
		return ErrNoModel
	case o.Session == "" || o.Turn == "":
		return fmt.Errorf("%w: session and turn need an id", ErrInvalid)
	case len(o.Calls) > 0:
	case o.Unfinished != nil:
		if o.Unfinished.Start < 0 || o.Unfinished.Start > len(o.History) || len(o.History)+len(o.Messages) == 0 {
			return fmt.Errorf("%w: the unfinished turn has no messages", ErrInvalid)
		}
	case len(o.Messages) == 0 || o.Messages[len(o.Messages)-1].Role != RoleUser:
		return fmt.Errorf("%w: the last message must be the user's", ErrInvalid)
	}
	if o.View != nil {
		if err := o.View.summary.checkFields(o.History); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	for _, p := range o.Profiles {
		if err := p.validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if err := p.CheckPrice(o.Budget); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if err := o.Budget.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
