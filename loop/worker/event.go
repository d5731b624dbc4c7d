package worker

import "github.com/caisson-run/caisson/loop"

// Event is an event of a worker, reported through [Options].Emit. The types of this
// package are the only ones.
type Event interface {
	// Kind is the event's name in records and logs.
	Kind() string
}

// ToolStarted reports that a call of a worker is permitted and begins. A [ToolCalled]
// follows it.
type ToolStarted struct {
	Worker string `json:"worker"`
	// CallID is that of the call, which no other one of the session has.
	CallID string `json:"inner_call_id"`
}

// ToolCalled reports a call of a worker and its result.
type ToolCalled struct {
	Worker string `json:"worker"`
	InnerCall
	// CallID is that of [ToolStarted], "" for a call that did not run.
	CallID string `json:"inner_call_id,omitempty"`
	// Summary is one line about the input, safe for display, and InputHash its hex
	// SHA-256; "" for a call that did not run.
	Summary   string `json:"summary,omitempty"`
	InputHash string `json:"input_hash,omitempty"`
}

// InputRefused reports a call whose arguments the tool's schema refused.
type InputRefused struct {
	Worker string `json:"worker"`
	Hop    int    `json:"hop"`
	Name   string `json:"name"`
	// SchemaError lists their problems.
	SchemaError string `json:"schema_error"`
}

// CostWarned reports, once for each worker, that its cost is above the cap.
type CostWarned struct {
	Worker      string  `json:"worker"`
	CapUSD      float64 `json:"cap_usd"`
	ObservedUSD float64 `json:"observed_usd"`
}

// ModelEvent is an event of the loop around a worker's request.
type ModelEvent struct {
	Worker string
	Event  loop.Event
}

// Kind implements [Event].
func (ToolStarted) Kind() string { return "worker_inner_call_started" }

// Kind implements [Event].
func (ToolCalled) Kind() string { return "worker_inner_call" }

// Kind implements [Event].
func (InputRefused) Kind() string { return "worker_inner_validation_fail" }

// Kind implements [Event].
func (CostWarned) Kind() string { return "worker_tool_cost_warning" }

// Kind implements [Event].
func (ModelEvent) Kind() string { return "worker_model_event" }
