package tools

import (
	"context"
	"time"
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

// Confirmation is what a person is asked. What is executed is what was shown:
// it is bound to the bytes by InputHash.
type Confirmation struct {
	// ID is 128 random bits in hex.
	ID     string
	CallID string
	Name   Name
	Class  Class
	// Input is the canonical JSON, made safe for display; Summary one line of it.
	Input   string
	Summary string
	// InputHash is the hex SHA-256 of the canonical JSON.
	InputHash string
	// Projected are the workspace paths that would change; Diff is a unified
	// diff where one can be made.
	Projected []string
	Diff      string
	// Hidden says that Input holds characters that a terminal would not show.
	Hidden  bool
	Expires time.Time
}

// Answer is what an Approver decided.
type Answer struct {
	Decision Decision
	Scope    Scope
}

// Approver asks somebody. Implementations must return when ctx ends.
type Approver interface {
	// Approve shows one confirmation and returns the answer. An error means
	// that nobody could be asked; the dispatcher then applies OnPrompt.
	Approve(ctx context.Context, c Confirmation) (Answer, error)
}
