package loop

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Event is an event of a turn, reported through [Options].Emit. The types of this
// package are the only ones. They have no JSON tags: runner encodes them as
// records.
type Event interface{ loopEvent() }

// MessageAdded reports a new message in the history.
type MessageAdded struct{ Message Message }

// ModelCallStarted reports the start of a model call. A [ModelCallCompleted] or a
// [ModelCallFailed] follows it.
type ModelCallStarted struct {
	Round int // from 1; 0 for the closing completion
	Model ModelInfo
	Tools int // the number of tools offered
}

// ModelCallCompleted reports the successful end of a model call.
type ModelCallCompleted struct {
	Round      int
	Latency    time.Duration
	FirstDelta time.Duration // the time until the first delta; 0 without one
	Usage      limits.Usage
	Finish     string
	ToolCalls  int
}

// ModelCallFailed reports the failure of a model call.
type ModelCallFailed struct {
	Round   int
	Class   ErrorClass
	Status  int
	Message string // for users; without the provider's details
	ErrorID string // identifies the log entry
}

// TextDelta reports a piece of an answer. It is never stored.
type TextDelta struct{ Text string }

// TurnStarted reports the start of a turn. It is the turn's first event.
type TurnStarted struct{ Turn string }

// TurnEnded reports the end of a turn. It is the turn's last event.
type TurnEnded struct {
	Turn      string
	Reason    StopReason
	Truncated bool
	Usage     limits.Usage
	Wall      time.Duration
}

// BudgetWarning reports that four fifths of a limit are used, once per limit.
type BudgetWarning struct {
	Kind        limits.Kind
	Limit, Used int64
}

// CallRefused reports a tool call that the loop answered itself, without the
// dispatcher. It is the terminal event of the call.
type CallRefused struct {
	CallID string
	Name   tools.Name
	// Class is permission_denied for a limit, and cancelled if the run ended
	// before the call.
	Class tools.ErrorClass
	// Reason is "limit", "no_tools", "too_many_calls", "interrupted" or the
	// stop reason.
	Reason  string
	Message string // for the model
}

// ContextShortened reports that further old tool results are shortened in
// requests, because the model's context window is nearly full. The history keeps
// them whole.
type ContextShortened struct {
	Results int   // the number of results
	Bytes   int64 // the number of bytes left out
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
