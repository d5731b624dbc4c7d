package loop

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Event is an event of a turn, reported through [Options].Emit. The types of this
// package are the only ones. Those with JSON tags are record payloads.
type Event interface{ loopEvent() }

// MessageAdded reports a message added to the history.
type MessageAdded struct{ Message Message }

// ModelCall identifies one attempt of a model call.
type ModelCall struct {
	Round   int    `json:"round"` // from 1; 0 for the closing completion and other calls
	Profile string `json:"profile"`
	Attempt int    `json:"attempt"` // from 1; each request of a round to one profile counts
	// Purpose is "" for an answer in the conversation.
	Purpose Purpose `json:"purpose,omitempty"`
	// Model is the profile's model. For an answer, its name is the one that the
	// provider reported, if any.
	Model ModelInfo `json:"model"`
}

// Purpose is what a model call's answer is for.
type Purpose string

// PurposeSummary is the purpose of a call that summarizes old messages.
const PurposeSummary Purpose = "summary"

// ModelCallStarted reports the start of a model call. A [ModelCallCompleted] or
// [ModelCallFailed] follows.
type ModelCallStarted struct {
	ModelCall

	Tools int `json:"tools_offered"`
}

// ModelCallCompleted reports a model's answer.
type ModelCallCompleted struct {
	ModelCall

	LatencyMS    int64        `json:"latency_ms"`
	FirstDeltaMS *int64       `json:"first_delta_ms,omitempty"` // nil if nothing was streamed
	Usage        limits.Usage `json:"usage"`
	Finish       string       `json:"finish"` // the provider's word
	ToolCalls    int          `json:"tool_calls"`
}

// ModelCallFailed reports that a model call failed.
type ModelCallFailed struct {
	ModelCall

	Class   ErrorClass `json:"error_class"`
	Status  int        `json:"http_status,omitempty"`
	Message string     `json:"error_message"`      // for users; without the provider's details
	ErrorID string     `json:"error_id,omitempty"` // identifies the log entry
	// Retry is nil if the request is not repeated.
	Retry *Retry `json:"retry,omitempty"`
}

// Retry describes the retry of a failed request.
type Retry struct {
	// Number counts the request's retries from 1, up to Most.
	Number  int   `json:"number"`
	Most    int   `json:"most"`
	DelayMS int64 `json:"delay_ms"` // rounded up
}

// ProfileChanged reports that a profile failed and another one takes its place, for
// this call and those of the next minutes.
type ProfileChanged struct {
	From, To string
	Class    ErrorClass // of the failure
}

// TextDelta reports a piece of an answer. It is not recorded.
type TextDelta struct{ Text string }

// TurnStarted is the turn's first event. Budget has the limits in force.
type TurnStarted struct {
	Turn   string
	Budget limits.Budget
}

// TurnEnded is the turn's last event.
type TurnEnded struct {
	Turn      string
	Reason    StopReason
	Truncated bool
	// Limit is set if Reason is [StopLimit].
	Limit *limits.ExceededError
	Usage limits.Usage
	Wall  time.Duration
}

// BudgetWarning reports, once per limit, that four fifths of it are used.
type BudgetWarning struct {
	What  limits.Kind `json:"kind"`
	Limit int64       `json:"limit"`
	Used  int64       `json:"used"`
	// Period and Profile identify a ceiling; see [limits.ExceededError].
	Period  limits.Period `json:"period,omitempty"`
	Profile string        `json:"profile,omitempty"`
}

// CallRefused reports a tool call that the loop answered without the dispatcher. It is
// the call's last event.
type CallRefused struct {
	CallID string
	Name   tools.Name
	// Class is permission_denied at a limit, and cancelled if the run ended first.
	Class tools.ErrorClass
	// Reason is "limit", "no_tools", "too_many_calls", "interrupted" or the stop
	// reason.
	Reason  string
	Message string // for the model
}

// ContextShortened reports that more old tool results are shortened in requests,
// because the context window is nearly full.
type ContextShortened struct {
	Results int   `json:"results"` // number of results
	Bytes   int64 `json:"bytes"`   // bytes left out
}

// ContextCompacted reports that a summary replaces the oldest messages in requests,
// because the context window is nearly full and shortened results are not enough. It
// replaces any earlier summary.
type ContextCompacted struct {
	Summary

	Profile string       `json:"profile"` // that wrote the summary
	Model   ModelInfo    `json:"model"`
	Usage   limits.Usage `json:"usage"` // of the answer; a ModelCallCompleted has counted it
	// BytesBefore is the size of the replaced messages, BytesAfter the summary's.
	BytesBefore int64 `json:"bytes_before"`
	BytesAfter  int64 `json:"bytes_after"`
}

// ContextCompactionFailed reports that a summary failed. Requests keep the messages.
type ContextCompactionFailed struct {
	Reason  CompactionFailure `json:"reason"` // model_failed, empty, cut, too_long
	Profile string            `json:"profile"`
}

// CanaryLeaked reports that an answer repeated the system prompt's canary, or IDs of
// the wrappers that mark text as data. They are replaced in the answer and its calls.
type CanaryLeaked struct{ Count int }

func (CallRefused) loopEvent()             {}
func (CanaryLeaked) loopEvent()            {}
func (ContextCompacted) loopEvent()        {}
func (ContextShortened) loopEvent()        {}
func (ContextCompactionFailed) loopEvent() {}
func (MessageAdded) loopEvent()            {}
func (ModelCallStarted) loopEvent()        {}
func (ModelCallCompleted) loopEvent()      {}
func (ModelCallFailed) loopEvent()         {}
func (ProfileChanged) loopEvent()          {}
func (TextDelta) loopEvent()               {}
func (TurnStarted) loopEvent()             {}
func (TurnEnded) loopEvent()               {}
func (BudgetWarning) loopEvent()           {}
