package limits

import (
	"fmt"
	"time"
)

// Budget bounds one agent run. A nil field means that there is no such limit;
// a zero or negative one is invalid.
type Budget struct {
	// Rounds is the number of model calls, the closing completion not counted.
	Rounds *int64
	// ToolCalls is the number of tool calls that the model may make.
	ToolCalls *int64
	// Tokens is input plus output tokens over all model calls, cached input included.
	Tokens *int64
	// CostMicroUSD is the cost in millionths of a US dollar. Unknown prices
	// count as nothing here; the run's report says that its cost is unknown.
	CostMicroUSD *int64
	// WallTime is the time from the start of the run to its end.
	WallTime *time.Duration
}

// Validate reports the first field that is zero or negative, by name.
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
