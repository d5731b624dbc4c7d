package loop

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Event is what the loop reports through its one hook. The set is sealed.
// Events carry no wire tags: runner renders them as records.
type Event interface{ loopEvent() }

// MessageAdded says that the history grew by one message.
type MessageAdded struct{ Message Message }

// ModelCallStarted and its two ends frame a model call.
type ModelCallStarted struct {
	Round int // from 1; 0 for a closing completion
	Model ModelInfo
	Tools int // offered
}

// ModelCallCompleted is the good end.
type ModelCallCompleted struct {
	Round      int
	Latency    time.Duration
	FirstDelta time.Duration // 0 where nothing was streamed
	Usage      limits.Usage
	Finish     string
	ToolCalls  int
}

// ModelCallFailed is the bad end.
type ModelCallFailed struct {
	Round   int
	Class   ErrorClass
	Status  int
	Message string // generic, for users
	ErrorID string // names the log entry
}

// TextDelta is a piece of an answer. It is never stored.
type TextDelta struct{ Text string }

// TurnStarted and TurnEnded frame a turn.
type TurnStarted struct{ Turn string }

// TurnEnded says how a turn ended.
type TurnEnded struct {
	Turn      string
	Reason    StopReason
	Truncated bool
	Usage     limits.Usage
	Wall      time.Duration
}

// BudgetWarning says that four fifths of a limit are used, once each.
type BudgetWarning struct {
	Kind        limits.Kind
	Limit, Used int64
}

// CallRefused says that the loop itself answered a tool call, which never
// reached the dispatcher. It is the terminal event of that call.
type CallRefused struct {
	CallID string
	Name   tools.Name
	// Class is permission_denied for a limit, cancelled where the run ended first.
	Class tools.ErrorClass
	// Reason is "limit", "no_tools", "too_many_calls" or the stop reason.
	Reason  string
	Message string // as the model sees it
}

// ContextShortened says that old tool results are sent shortened from now on,
// because the model's context window is nearly full. The history keeps them whole.
type ContextShortened struct {
	Results int
	Bytes   int64 // left out
}

func (CallRefused) loopEvent()        {}
func (ContextShortened) loopEvent()   {}
func (MessageAdded) loopEvent()       {}
func (ModelCallStarted) loopEvent()   {}
func (ModelCallCompleted) loopEvent() {}
func (ModelCallFailed) loopEvent()    {}
func (TextDelta) loopEvent()          {}
func (TurnStarted) loopEvent()        {}
func (TurnEnded) loopEvent()          {}
func (BudgetWarning) loopEvent()      {}
