package limits

import (
	"fmt"
	"time"
)

// Budget bounds one agent run. A nil field means no limit; a zero or negative
// limit is invalid.
type Budget struct {
	// Rounds is the number of model calls, without the closing completion.
	Rounds *int64
	// ToolCalls is the number of tool calls that the model may make.
	ToolCalls *int64
	// Tokens is the sum of input tokens, cached ones included, and output
	// tokens over all model calls.
	Tokens *int64
	// CostMicroUSD is the cost in millionths of a US dollar. Calls with an
	// unknown price count as zero here; the run's report has no cost then.
	CostMicroUSD *int64
	// WallTime is the time from the start of the run to its end.
	WallTime *time.Duration
}

// Validate returns an error that names the first field that is zero or
// negative.
func (b Budget) Validate() error {
	for _, f := range []struct {
		kind  Kind
		bound *int64
	}{
		{KindRounds, b.Rounds},
		{KindToolCalls, b.ToolCalls},
		{KindTokens, b.Tokens},
		{KindCost, b.CostMicroUSD},
		{KindWallTime, (*int64)(b.WallTime)},
	} {
		if f.bound != nil && *f.bound <= 0 {
			return fmt.Errorf("budget %s is %d, must be positive or left out", f.kind, *f.bound)
		}
	}
	return nil
}
