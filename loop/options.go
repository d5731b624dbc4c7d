package loop

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

// dispatcher is the part of dispatch.Dispatcher that the loop uses.
type dispatcher interface {
	// Definitions returns the session's tools in a stable order.
	Definitions() []tools.Definition
	// Round runs all calls of one assistant message and returns a result for each, in
	// order. An error ends the run, for example if the sandbox is lost, an approver is
	// missing, or a record can't be written. The results are complete even then.
	Round(ctx context.Context, calls []tools.Call) ([]tools.Result, error)
}

// Options configures one turn. Session and Turn are required, and either Profiles and
// Messages or Calls.
type Options struct {
	// Profiles are the turn's models, in order of preference. If one fails before its
	// answer begins, the next one is asked, and the failed one not for five minutes.
	// After a refused key, or a context overflow that shortening doesn't cure, it is
	// not asked again in this turn. An invalid or cancelled request ends the turn.
	Profiles []Profile
	// Calls are tool calls, with Name and Raw as in a model's answer, for a turn
	// without a model that ends with their results. Profiles, System and Messages are
	// then ignored.
	Calls []ToolUse
	// Dispatcher runs the tool calls; nil means no tools.
	Dispatcher dispatcher
	Budget     limits.Budget
	// Ledger, if not nil, bounds the requests of this and other sessions together,
	// except those to models with [ModelInfo].Recorded set.
	Ledger Ledger
	// System is the system prompt; see [SystemPrompt]. It becomes the first message if
	// History is empty, and is otherwise ignored. "" means none.
	System boundary.Text
	// History is the conversation before this turn. Its messages are not reported.
	// Calls in it without a result get one that reports the interruption; they are
	// never run. It lacks the messages that the view's summary replaces; see
	// [Summary.TrimHistory].
	History []Message
	// View is the one of the conversation's earlier turns. The turn changes it. Nil
	// means a new one.
	View *View
	// Messages begin the turn; the last one is the user's. They are reported as
	// [MessageAdded] after [TurnStarted].
	Messages []Message
	// Unfinished continues the turn at the end of History. Messages are then those
	// still missing, possibly none. Nil begins a new turn.
	Unfinished    *Unfinished
	Session, Turn string
	// Emit receives the events, in order and on one goroutine. If it returns an error,
	// the turn ends with [StopTraceUnwritable] and Emit is not called again. Nil
	// discards events.
	Emit func(Event) error
	// Started is when Budget.WallTime starts to count; zero means now.
	Started time.Time
	// NewID returns a new ID with a prefix, "tu" or "err"; nil means ULIDs.
	NewID func(prefix string) string
	// Logger receives details that users must not see, such as a provider's messages.
	// It may be nil.
	Logger *zap.Logger
}

// Unfinished is a turn that another process began. Its start is not reported again. The
// calls of its last answer need a result; see [AnswerInterrupted].
type Unfinished struct {
	// Start is the index of its first message in [Options].History.
	Start int
	Used  limits.Usage
}

// Outcome is a turn's outcome. History has a result for every tool call.
type Outcome struct {
	Reason StopReason
	// Answer is the model's last text in this turn, or "". Closing reports whether the
	// closing completion gave it.
	Answer  string
	Closing bool
	// Truncated reports whether a limit ended the turn or the provider cut the answer.
	Truncated bool
	// Limit is the reached limit if Reason is StopLimit.
	Limit *limits.ExceededError
	Usage limits.Usage
	// Estimate is use that no provider counted. It counted against limits of tokens and
	// cost besides Usage.
	Estimate limits.Usage
	// History is [Options].History plus the turn's messages. Unlike in the
	// [MessageAdded] events, results may be shortened, and messages that the view's
	// summary replaces are missing.
	History []Message
	// Err is a failure's cause, for the log.
	Err error
}

// ErrInvalid is [Run]'s error for invalid [Options].
var ErrInvalid = errors.New("invalid loop options")

func (o Options) validate() error {
	switch {
	case len(o.Profiles) == 0 && len(o.Calls) == 0:
		return ErrNoModel
	case o.Session == "" || o.Turn == "":
		return errors.New("session and turn need an id")
	case len(o.Calls) > 0:
	case o.Unfinished != nil:
		if o.Unfinished.Start < 0 || o.Unfinished.Start > len(o.History) || len(o.History)+len(o.Messages) == 0 {
			return errors.New("the unfinished turn has no messages")
		}
	case len(o.Messages) == 0 || o.Messages[len(o.Messages)-1].Role != RoleUser:
		return errors.New("the last message must be the user's")
	}
	if o.View != nil {
		if err := o.View.summary.checkFields(o.History); err != nil {
			return err
		}
	}
	for _, p := range o.Profiles {
		if err := p.validate(o.Budget); err != nil {
			return err
		}
	}
	return o.Budget.Validate()
}
