package limits

import (
	"fmt"
	"time"
)

// CodeTripped is the error code of a [TrippedError].
const CodeTripped = "CIRCUIT_BREAKER_TRIPPED"

// BreakerName names a breaker, in records, results and reports too.
type BreakerName string

// The breakers. The breakers of a session stay tripped until the session ends;
// the breaker of a host closes again.
const (
	BreakerSessionCost     BreakerName = "session_cost"
	BreakerSessionTokens   BreakerName = "session_tokens"
	BreakerSessionWallTime BreakerName = "session_wall_time"
	BreakerSessionCalls    BreakerName = "session_calls"
	BreakerFetchHost       BreakerName = "fetch_host"
)

// TrippedError is the error of an operation that a breaker refused before it
// began.
type TrippedError struct {
	Breaker BreakerName
	// Key is the key that tripped, such as a host; "" if the breaker has no
	// keys.
	Key string
	// Retry is the least time until the breaker allows an operation again. It
	// is 0 if the breaker stays tripped, or if a trial is under way.
	Retry time.Duration
	// Err is the *[ExceededError] that tripped a session's breaker; nil for
	// other breakers.
	Err error
}

// Code returns [CodeTripped].
func (*TrippedError) Code() string { return CodeTripped }

// Error returns a message that starts with the code and names the breaker.
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

// Unwrap returns e.Err.
func (e *TrippedError) Unwrap() error { return e.Err }
