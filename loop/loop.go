package loop

import (
	"context"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// dispatcher is what the loop needs of tools.Dispatcher.
type dispatcher interface {
	// Definitions are the tools that this session may use, in a stable order.
	Definitions() []tools.Definition
	// Round runs all calls of one assistant message and returns one result
	// each, in request order. Its error ends the run: the loss of the
	// sandbox, an approver who is missing under --on-prompt fail, a record
	// that can't be written. Results are complete even then.
	Round(ctx context.Context, calls []tools.Call) ([]tools.Result, error)
}

// Outcome is how a turn ended.
type Outcome struct {
	Reason StopReason
	// Answer is the final text, "" where there is none.
	Answer string
	// Truncated says that a limit ended it.
	Truncated bool
	// Limit is set where Reason is StopLimit.
	Limit *limits.ExceededError
	Usage limits.Usage
	// History is everything, the initial messages included.
	History []Message
	// Err is the cause of a bad end, for the log.
	Err error
}
