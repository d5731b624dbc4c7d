package approval

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Decision is an answer to a confirmation.
type Decision string

// The decisions. DecisionTimeout is never given by a person.
const (
	DecisionAllow   Decision = "allow"
	DecisionDeny    Decision = "deny"
	DecisionTimeout Decision = "timeout"
)

// Scope is how long an answer holds.
type Scope string

// The scopes: this call; this tool for the session; stored for the workspace.
const (
	ScopeOnce    Scope = "once"
	ScopeSession Scope = "session"
	ScopeAlways  Scope = "always"
)

// HostTool is the name of confirmations, and of stored answers, about a host that a
// command wants to connect to. No tool has it.
const HostTool tools.Name = "network_connect"

// Question is the part of a confirmation that is recorded.
type Question struct {
	CallID string      `json:"tool_use_id"`
	Name   tools.Name  `json:"tool_name"`
	Class  tools.Class `json:"side_effects"`
	// ID is 128 random bits in hex.
	ID string `json:"confirmation_request_id"`
	// Input is the canonical JSON, made safe for display, elided in the middle
	// with a count if it is long; Summary is one line of it. In records, CommandLine is
	// Summary if the call executes a command. InputHash is the hex SHA-256 of the
	// canonical JSON.
	Summary     string  `json:"input_summary"`
	CommandLine *string `json:"command_summary"`
	InputHash   string  `json:"input_hash"`
	Input       string  `json:"display"`
	// Hidden reports that Input, a path or Diff holds characters that a terminal
	// would not show; they are written as escapes.
	Hidden bool `json:"hidden_characters"`
	// Projected are the workspace paths that would change; Diff is a unified
	// diff if one can be made. Both are safe for display.
	Projected []string `json:"projected_modifications"`
	Diff      string   `json:"diff,omitempty"`
	// Runs is where it would run.
	Runs tools.Place `json:"runs,omitempty"`
	// Dangerous is the part of the command that the policy calls dangerous, safe for
	// display; "" for nothing.
	Dangerous string `json:"dangerous,omitempty"`
	// Notices are facts about the input that a person might overlook, each a
	// phrase, safe for display: long runs of blanks, letters that pass for others.
	Notices []string `json:"notices,omitempty"`
	// Covers are the workspace files, safe for display, whose content the answer
	// covers beside the input: if one changes before the call runs, it is asked
	// again. What else a command reads is not covered.
	Covers []string `json:"covers,omitempty"`
	// Changed reports that this was asked before, and that what Diff was made
	// from has changed since the answer.
	Changed bool `json:"changed,omitempty"`
	// Scopes are the scopes that an answer may have, ScopeOnce always among
	// them. Another scope counts as ScopeOnce.
	Scopes []Scope `json:"scopes,omitempty"`
	// Phrase is the exact command that a lasting answer about an execute tool
	// would be bound to, safe for display; "" for other classes, and if
	// ScopeAlways is not offered.
	Phrase string `json:"phrase,omitempty"`
	// ExpiresAt is Confirmation.Expires in records, as RFC 3339.
	ExpiresAt string `json:"expires_at"`
	// Definition is the hash of the definition of a server's tool, to which answers for
	// longer than this call are bound. Redefined reports that the tool was allowed
	// before, with another definition.
	Definition string `json:"definition,omitempty"`
	Redefined  bool   `json:"redefined,omitempty"`
}

// Confirmation is one call that a person is asked about. The call runs as shown:
// it is bound to the bytes by InputHash.
type Confirmation struct {
	Question
	// Seq counts the confirmations of the session from 1, in the order of the calls.
	Seq int
	// Description is the text of the server about its tool, safe for display and bounded;
	// "" for our own tools.
	Description string
	// Workspace is the directory on the host, safe for display, that a lasting answer is
	// for.
	Workspace string
	// Exact is the input itself, for clients that do their own rendering: never for a
	// terminal.
	Exact json.RawMessage
	// DiffElided reports that the middle of Diff is left out because it is
	// longer than 256 KiB. Exact is always whole: a client that can't show the change
	// as a diff can show that.
	DiffElided bool
	// As is the other tool whose rule asked, and Command the policy's entry about
	// commands that did, safe for display; "" for none. An answer for the session covers
	// what they are about, alone.
	As      tools.Name
	Command string
	// RequiresAdmin reports that only an administrator may allow it.
	RequiresAdmin bool
	// Expires is the time after which no answer counts. It holds a monotonic
	// reading: compare it with time.Now, and show people what is left.
	Expires time.Time
}

// Answer is the decision of an Approver. Anything but DecisionAllow refuses.
type Answer struct {
	Decision Decision
	Scope    Scope
	// Reason is why a person refuses, in their words, for the model; "" for none. The
	// broker makes it safe for display and cuts it to [MaxReasonCharacters]. An answer
	// that allows has none.
	Reason string
}

// MaxReasonCharacters bounds Answer.Reason.
const MaxReasonCharacters = 1000

// cleanReason returns the reason of an answer as records, people and the model get it.
func cleanReason(a Answer) string {
	if a.Decision == DecisionAllow {
		return ""
	}
	safe, _ := tools.DisplayLines(strings.TrimSpace(utf8text.Clip(a.Reason, utf8.UTFMax*MaxReasonCharacters)))
	if utf8.RuneCountInString(safe) > MaxReasonCharacters {
		safe = string([]rune(safe)[:MaxReasonCharacters])
	}
	return safe
}

// Approver is a client that asks a person; see [Broker.Attach]. It is safe for
// concurrent use: the confirmations of one round are asked at the same time.
// Implementations must return when ctx ends; an answer that comes later counts
// for nothing. The cause of ctx is a [*ResolvedError] if the confirmation was
// resolved without this client: it holds what was recorded, the end of the time
// and a cancellation included.
type Approver interface {
	// Approve shows one confirmation and returns the answer. An error means
	// that no one could be asked there; if no client is left, OnPrompt decides.
	Approve(ctx context.Context, c Confirmation) (Answer, error)
}
