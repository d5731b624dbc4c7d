package dispatch

import (
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// Event is one step of a call, as the dispatcher reports it. The set is
// sealed. Events carry no wire tags: runner renders them as records.
//
// A call's events come in order: ConfirmationRequested and its
// ConfirmationResolved, none or one pair, and one more each time that what was
// shown has changed; at most one Called; any number of OutputDelta; and exactly
// one terminal: Completed, Failed or InputInvalid. An answer that was
// kept or stored is reported by a ConfirmationResolved alone. Warning may come at
// any time, also after the terminal event.
type Event interface{ toolEvent() }

// Called is a call that holds its slot and starts to run.
type Called struct {
	CallID string
	Name   tools.Name
	// InputHash is the hex SHA-256 of the canonical JSON (keys sorted) of the
	// input after aliases were rewritten; InputBytes its length.
	InputHash  string
	InputBytes int
	Class      tools.Class
	// Rule is the rule of the policy that let it run or asked; see [policy.Verdict].
	Rule string
	// Summary is one line for people, made safe: the command, or the path.
	Summary string
}

// OutputDelta is a piece of live output. It is never stored.
type OutputDelta struct {
	CallID string
	Stream string // "stdout" or "stderr"
	Text   string
}

// Completed is the terminal event of a call that ran to its end, with or
// without success.
type Completed struct {
	CallID  string
	Name    tools.Name
	Success bool
	// OutputBytes is the size of the result for the model; Truncated reports that
	// the tool gave more.
	OutputBytes   int
	Truncated     bool
	Latency       time.Duration
	FilesModified []string
	Command       string
	Metadata      map[string]any
	// Diff is the change of files that no one was asked about, safe for display and
	// elided in the middle where it is long; "" for none.
	Diff string
}

// Failed is the terminal event of a call that did not.
type Failed struct {
	CallID  string
	Name    tools.Name
	Class   tools.ErrorClass
	Reason  string
	Message string // as the model sees it
	// ErrorID names the log entry where Message is generic.
	ErrorID       string
	Latency       time.Duration
	FilesModified []string
	Partial       string
	// OutputBytes is the size of what the model gets.
	OutputBytes int
	// Ran reports that Called came before.
	Ran bool
}

// InputInvalid is the terminal event of a call whose input the schema refuses.
type InputInvalid struct {
	CallID   string
	Name     tools.Name
	Messages []string
}

// ConfirmationRequested asks for an answer; see [approval.Confirmation].
type ConfirmationRequested struct{ Confirmation approval.Confirmation }

// ConfirmationResolved is the resolution of a confirmation.
type ConfirmationResolved struct {
	CallID         string
	ConfirmationID string
	Decision       approval.Decision
	Scope          approval.Scope
	// By is as in [approval.Resolution].
	By string
	// Client is the label of the client that a user answered at, or "".
	Client string
	// Reason is why the user refused, as in [approval.Answer].
	Reason string
}

// ConfirmationAttempted is an answer that changed nothing; see [approval.Attempt].
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
