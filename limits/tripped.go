package limits

import (
	"fmt"
	"time"
)

// CodeTripped is how a [TrippedError] is named where errors have codes.
const CodeTripped = "CIRCUIT_BREAKER_TRIPPED"

// BreakerName names a breaker: what records, results and reports say.
type BreakerName string

// The breakers. Those of a session stay tripped until it ends; that of a host
// closes again.
const (
	BreakerSessionCost     BreakerName = "session_cost"
	BreakerSessionTokens   BreakerName = "session_tokens"
	BreakerSessionWallTime BreakerName = "session_wall_time"
	BreakerSessionCalls    BreakerName = "session_calls"
	BreakerFetchHost       BreakerName = "fetch_host"
)

// TrippedError says that a breaker refuses an operation before it began.
type TrippedError struct {
	Breaker BreakerName
	// Key is what a breaker with many keys tripped for, such as a host.
	Key string
	// Retry is how long it will refuse at least; 0 where that is for good, or
	// not known because a trial is under way.
	Retry time.Duration
	// Err is what a session's breaker tripped by, an *[ExceededError]; nil for others.
	Err error
}

// Code is [CodeTripped].
func (*TrippedError) Code() string { return CodeTripped }

// Error begins with the code and names the breaker.
func (e *TrippedError) Error() string {
	text := CodeTripped + ": breaker " + string(e.Breaker)
	if e.Key != "" {
		text += " of " + e.Key
	}
	switch {
	case e.Err != nil:
		text += fmt.Sprintf(": %v", e.Err)
	case e.Retry > 0:
		text += fmt.Sprintf(" is open for another %v", max(e.Retry.Round(time.Second), time.Second))
	default:
		text += " is open until a trial that is under way has ended"
	}
	return text
}

// Unwrap gives Err.
func (e *TrippedError) Unwrap() error { return e.Err }
