package approval

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/policy"
)

// Decision is an answer to a confirmation.
type Decision string

// The decisions. Nobody gives DecisionTimeout.
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

// HostTool stands for a tool in confirmations and stored answers about a host that
// a command wants to connect to.
const HostTool tools.Name = "network_connect"

// Question is the recorded part of a confirmation.
type Question struct {
	CallID string      `json:"tool_use_id"`
	Name   tools.Name  `json:"tool_name"`
	Class  tools.Class `json:"side_effects"`
	// ID is 128 random bits in hex.
	ID string `json:"confirmation_request_id"`
	// Input is the canonical JSON, made safe for display and elided in the middle
	// if long. Summary is one line of it. In records, CommandLine is Summary if the
	// call executes a command. InputHash is the hex SHA-256 of the canonical JSON.
	Summary     string  `json:"input_summary"`
	CommandLine *string `json:"command_summary"`
	InputHash   string  `json:"input_hash"`
	Input       string  `json:"display"`
	// Hidden reports that Input, a path or Diff has characters that a terminal
	// would not show. They are escaped.
	Hidden bool `json:"hidden_characters"`
	// Projected are the workspace paths that would change. Diff is a unified diff
	// or "". Both are safe for display.
	Projected []string    `json:"projected_modifications"`
	Diff      string      `json:"diff,omitempty"`
	Runs      tools.Place `json:"runs,omitempty"`
	// Dangerous is the part of the command that the policy calls dangerous, safe
	// for display, or "".
	Dangerous string `json:"dangerous,omitempty"`
	// Notices are what [tools.InputNotices] found, and other facts about the call,
	// each a phrase that is safe for display.
	Notices []string `json:"notices,omitempty"`
	// Covers are the workspace files, safe for display, whose content the answer
	// also covers: if one changes before the call runs, the call is asked about
	// again. Other files that a command reads are not covered.
	Covers []string `json:"covers,omitempty"`
	// Changed reports that the call was asked about before, and that what Diff was
	// made from has changed since.
	Changed bool `json:"changed,omitempty"`
	// Scopes are the scopes that an answer may have, including ScopeOnce. Any other
	// scope counts as ScopeOnce.
	Scopes []Scope `json:"scopes,omitempty"`
	// Phrase is the exact command that a lasting answer about an execute tool would
	// be bound to, safe for display. It is "" for other classes or without
	// ScopeAlways.
	Phrase string `json:"phrase,omitempty"`
	// ExpiresAt is Confirmation.Expires in records, as RFC 3339.
	ExpiresAt string `json:"expires_at"`
	// Definition is the hash of a server tool's definition, to which answers that
	// outlast this call are bound. Redefined reports that the tool was allowed
	// before, with another definition.
	Definition string `json:"definition,omitempty"`
	Redefined  bool   `json:"redefined,omitempty"`
}

// Confirmation is one call that a person is asked about. The call runs as shown:
// InputHash binds it to the bytes.
type Confirmation struct {
	Question
	// Seq counts the session's confirmations from 1, in the order of the calls.
	Seq int
	// Description is what a server says about its tool, safe for display and
	// bounded. It is "" for our own tools.
	Description string
	// Workspace is the host directory that a lasting answer is for, safe for
	// display.
	Workspace string
	// Exact is the input itself, for clients that render it themselves. Never write
	// it to a terminal.
	Exact json.RawMessage
	// DiffElided reports that the middle of Diff is left out. A client can then
	// show Exact, which is always whole.
	DiffElided bool
	// As is the other tool whose rule asked, and Command the policy's entry about
	// commands that asked, safe for display, or "". An answer for the session
	// covers only these.
	As      tools.Name
	Command string
	// RequiresAdmin reports that only an administrator may allow the call.
	RequiresAdmin bool
	// Expires is when answers stop counting. It has a monotonic reading: compare it
	// with time.Now, and show people the time left.
	Expires time.Time
}

// Answer is an Approver's decision. Anything but DecisionAllow refuses.
type Answer struct {
	Decision Decision
	Scope    Scope
	// Reason is why a person refuses, in their words, for the model, or "". The
	// broker makes it safe for display and cuts it to [MaxReasonCharacters]. It
	// drops the reason of an allow.
	Reason string
}

// MaxReasonCharacters bounds [Answer].Reason.
const MaxReasonCharacters = 1000

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

// Approver is a client that asks a person; see [Broker.Attach]. The confirmations
// of one round are asked concurrently. Approve must return when ctx ends; a later
// answer doesn't count. The cause of ctx is a [*ResolvedError] if the confirmation
// was resolved without this client, also by a timeout or cancellation.
type Approver interface {
	// Approve shows one confirmation and returns the answer. An error means that
	// nobody could be asked there. If no client is left, OnPrompt decides.
	Approve(ctx context.Context, c Confirmation) (Answer, error)
}

// SessionWords says what an answer for the session covers, as in "a covers …".
func (c Confirmation) SessionWords() string {
	name := string(c.Name)
	switch {
	case strings.HasSuffix(c.Command, policy.AnyCommand): // perhaps after a rule's own command
		return "every input of " + name + " in this session that may run any command, such as keys, even one that your rules restrict"
	case c.Command != "":
		return "every command of " + name + " in this session that your rule " + c.Command + " asks about, and none that is called dangerous"
	case c.As != "":
		return "every call of " + name + " in this session that does the work of " + string(c.As)
	case c.Class == tools.ClassExecute:
		return "every call of " + name + " in this session, but none that is called dangerous"
	}
	return "every call of " + name + " in this session"
}

// LastingWords says what an answer for good covers. It is safe to show.
func (c Confirmation) LastingWords() string {
	what := "every call of " + string(c.Name)
	switch {
	case c.Name == HostTool:
		what = "connections to " + c.Phrase + " by every command"
	case c.Phrase != "":
		what = "exactly `" + c.Phrase + "`"
	}
	if c.Definition != "" {
		what += " as its server defines it now"
	}
	if c.Workspace != "" {
		what += " in this folder"
	}
	return what
}
