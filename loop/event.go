package loop

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// Event is an event of a turn, reported through [Options].Emit. The types of this
// package are the only ones. Those with JSON tags are the payloads of records.
type Event interface{ loopEvent() }

// MessageAdded reports a new message in the history.
type MessageAdded struct{ Message Message }

// ModelCall identifies one attempt of a model call.
type ModelCall struct {
	Round   int    `json:"round"` // from 1; 0 for the closing completion and other calls
	Profile string `json:"profile"`
	Attempt int    `json:"attempt"` // from 1; each request of a round to one profile counts
	// Purpose is the use of the answer, "" for an answer in the conversation.
	Purpose Purpose `json:"purpose,omitempty"`
	// Model is the model of the profile. Of an answer, its name is the one that
	// the provider reported, if any.
	Model ModelInfo `json:"model"`
}

// Purpose is the use of a model call's answer.
type Purpose string

// PurposeSummary is the purpose of a call that summarizes old messages.
const PurposeSummary Purpose = "summary"

// ModelCallStarted reports the start of a model call. A [ModelCallCompleted] or a
// [ModelCallFailed] follows it.
type ModelCallStarted struct {
	ModelCall

	Tools int `json:"tools_offered"` // the number of tools offered
}

// ModelCallCompleted reports the successful end of a model call.
type ModelCallCompleted struct {
	ModelCall

	LatencyMS    int64        `json:"latency_ms"`
	FirstDeltaMS *int64       `json:"first_delta_ms,omitempty"` // nil if nothing was streamed
	Usage        limits.Usage `json:"usage"`
	Finish       string       `json:"finish"` // the provider's word
	ToolCalls    int          `json:"tool_calls"`
}

// ModelCallFailed reports the failure of a model call.
type ModelCallFailed struct {
	ModelCall

	Class   ErrorClass `json:"error_class"`
	Status  int        `json:"http_status,omitempty"`
	Message string     `json:"error_message"`      // for users; without the provider's details
	ErrorID string     `json:"error_id,omitempty"` // identifies the log entry
	// Retry is the repetition of the request, or nil if it is not repeated.
	Retry *Retry `json:"retry,omitempty"`
}

// Retry is the repetition of a failed request after a delay.
type Retry struct {
	// Number counts the retries of the request from 1; Most is the largest one.
	Number  int   `json:"number"`
	Most    int   `json:"most"`
	DelayMS int64 `json:"delay_ms"` // rounded up
}

// ProfileChanged reports that a profile failed and another one is asked in its place,
// for this call and those of the next minutes.
type ProfileChanged struct {
	From, To string
	Class    ErrorClass // of the failure
}

// TextDelta reports a piece of an answer. It is never stored.
type TextDelta struct{ Text string }

// TurnStarted reports the start of a turn. It is the turn's first event.
type TurnStarted struct {
	Turn string
	// Budget has the limits in force.
	Budget limits.Budget
}

// TurnEnded reports the end of a turn. It is the turn's last event.
type TurnEnded struct {
	Turn      string
	Reason    StopReason
	Truncated bool
	// Limit is what ended it, if Reason is [StopLimit].
	Limit *limits.ExceededError
	Usage limits.Usage
	Wall  time.Duration
}

// BudgetWarning reports that four fifths of a limit are used, once per limit.
type BudgetWarning struct {
	What  limits.Kind `json:"kind"`
	Limit int64       `json:"limit"`
	Used  int64       `json:"used"`
	// Period and Profile are those of a ceiling, see [limits.ExceededError].
	Period  limits.Period `json:"period,omitempty"`
	Profile string        `json:"profile,omitempty"`
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
// requests, because the model's context window is nearly full.
type ContextShortened struct {
	Results int   `json:"results"` // the number of results
	Bytes   int64 `json:"bytes"`   // the number of bytes left out
}

// ContextCompacted reports that a summary replaces the oldest messages in requests,
// because the model's context window is nearly full and shortened results are not
// enough. It replaces the summary before it, if any.
type ContextCompacted struct {
	Summary

	Profile string       `json:"profile"` // that wrote the summary
	Model   ModelInfo    `json:"model"`
	Usage   limits.Usage `json:"usage"` // of the answer, which a ModelCallCompleted has counted
	// BytesBefore is the size of what is replaced, BytesAfter that of the summary.
	BytesBefore int64 `json:"bytes_before"`
	BytesAfter  int64 `json:"bytes_after"`
}

// ContextCompactionFailed reports that there is no usable summary. Requests go on with
// the messages.
type ContextCompactionFailed struct {
	Reason  CompactionFailure `json:"reason"` // model_failed, empty, cut, too_long
	Profile string            `json:"profile"`
}

// CanaryLeaked reports that an answer repeated the canary of the system prompt, or IDs of
// wrappers, which mark text that is data. They are replaced in the answer and in its calls.
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
