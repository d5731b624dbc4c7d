package dispatch

import (
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Event is one step of a call. The types are sealed; those with JSON tags are the
// payloads of records.
//
// A call's events come in order: none or one ConfirmationRequested with its
// ConfirmationResolved, and another pair each time that what was shown has changed;
// at most one Called; any number of OutputDelta; and exactly one terminal event:
// Completed, Failed or InputInvalid. A kept or stored answer is reported by a
// ConfirmationResolved alone. A Warning may come at any time, also after the
// terminal event.
type Event interface{ toolEvent() }

// Called reports that a call holds its slot and starts to run.
type Called struct {
	CallID string     `json:"tool_use_id"`
	Name   tools.Name `json:"tool_name"`
	// InputHash is the hex SHA-256 of the canonical JSON input after aliases were
	// rewritten, InputBytes its length.
	InputHash  string      `json:"input_hash"`
	InputBytes int         `json:"input_size_bytes"`
	Class      tools.Class `json:"side_effects"`
	// Rule is the policy's rule that let the call run or asked; see
	// [policy.Verdict].
	Rule string `json:"rule"`
	// Summary is one line for people, safe for display.
	Summary string `json:"summary"`
}

// OutputDelta is a piece of live output. It is never stored.
type OutputDelta struct {
	CallID string
	Stream string // "stdout" or "stderr"
	Text   string
}

// Completed is the terminal event of a call that ran to its end, with or without
// success.
type Completed struct {
	CallID  string     `json:"tool_use_id"`
	Name    tools.Name `json:"tool_name"`
	Success bool       `json:"success"`
	// OutputBytes is the size of the result for the model. Truncated reports that
	// the tool returned more.
	OutputBytes   int            `json:"output_size_bytes"`
	Truncated     bool           `json:"truncated,omitempty"`
	LatencyMS     int64          `json:"latency_ms"`
	FilesModified []string       `json:"files_modified"` // never nil
	Command       *string        `json:"command_executed"`
	Metadata      map[string]any `json:"metadata,omitempty"`
	// Diff is the change of files that nobody was asked about, as projected just
	// before the call ran. It is safe for display, and elided in the middle if
	// long.
	Diff string `json:"diff,omitempty"`
}

// Failed is the terminal event of a call that did not run to its end.
type Failed struct {
	CallID  string           `json:"tool_use_id"`
	Name    tools.Name       `json:"tool_name"`
	Class   tools.ErrorClass `json:"error_class"`
	Reason  string           `json:"reason,omitempty"`
	Message string           `json:"error_message"` // as the model sees it
	// ErrorID names the log entry if Message is generic.
	ErrorID       string   `json:"error_id,omitempty"`
	LatencyMS     int64    `json:"latency_ms"`
	FilesModified []string `json:"files_modified"` // never nil
	Partial       string   `json:"partial_output,omitempty"`
}

// InputInvalid is the terminal event of a call whose input fails the schema.
type InputInvalid struct {
	CallID string     `json:"tool_use_id"`
	Name   tools.Name `json:"tool_name"`
	Errors []string   `json:"validation_errors"`
}

// ConfirmationRequested asks for an answer; see [approval.Confirmation].
type ConfirmationRequested struct{ Confirmation approval.Confirmation }

// ConfirmationResolved is the result of a confirmation.
type ConfirmationResolved struct{ approval.Resolution }

// ConfirmationAttempted is an answer that changed nothing.
type ConfirmationAttempted struct{ approval.Attempt }

// Warning is a fact that an operator or user should see.
type Warning struct {
	CallID  string
	Message string
}

func (Called) toolEvent()                {}
func (OutputDelta) toolEvent()           {}
func (Completed) toolEvent()             {}
func (Failed) toolEvent()                {}
func (InputInvalid) toolEvent()          {}
func (ConfirmationRequested) toolEvent() {}
func (ConfirmationResolved) toolEvent()  {}
func (ConfirmationAttempted) toolEvent() {}
func (Warning) toolEvent()               {}

// emitter passes events to the sink, one at a time, and remembers whether one could
// not be recorded: after that nothing may start.
type emitter struct {
	mu     sync.Mutex
	sink   func(Event) error
	failed error
}

// emit reports an event. Its error wraps [tools.ErrRecord] and repeats for every
// later event. After an error the sink gets only terminal events, so that every
// call that it knows of ends.
func (e *emitter) emit(ev Event) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil && !isTerminal(ev) {
		return e.failed
	}
	err := e.sink(ev)
	if _, live := ev.(OutputDelta); live {
		return nil
	}
	if err != nil && e.failed == nil {
		e.failed = fmt.Errorf("%w: %w", tools.ErrRecord, err)
	}
	return e.failed
}

const maxDeltaBytes = 64 << 10

func isTerminal(ev Event) bool {
	switch ev.(type) {
	case Completed, Failed, InputInvalid:
		return true
	}
	return false
}

// callEvents passes on a call's live output until it is closed.
type callEvents struct {
	out    *emitter
	callID string

	mu     sync.Mutex
	closed bool
}

func (c *callEvents) emitDelta(stream, text string) {
	if text == "" {
		return
	}
	text, _ = utf8text.Bound(text, maxDeltaBytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	_ = c.out.emit(OutputDelta{CallID: c.callID, Stream: stream, Text: utf8text.Repair(text)})
}

func (c *callEvents) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
