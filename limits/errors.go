package limits

import "fmt"

// Kind names a limit. The values are what records and reports say.
type Kind string

// The limits that a run or a sandbox can reach, with the unit of
// [ExceededError].Limit and Used.
const (
	KindRounds    Kind = "rounds"     // count
	KindToolCalls Kind = "tool_calls" // count
	KindTokens    Kind = "tokens"     // count
	KindCost      Kind = "cost_usd"   // millionths of a US dollar
	KindWallTime  Kind = "wall_time"  // milliseconds
	KindContext   Kind = "context"    // tokens
	KindMemory    Kind = "memory"     // bytes
	KindPIDs      Kind = "pids"       // count
	KindDisk      Kind = "disk"       // bytes, or files: Limit must be left, Used is
)

// ExceededError says that a limit was reached. It is an error only where the
// limit ends the operation; a command's own timeout is a value of its exit.
type ExceededError struct {
	Kind Kind
	// Limit is what was allowed and Used what was reached, in Kind's unit.
	Limit, Used int64
	// Files reports whether Limit and Used of KindDisk count files (inodes)
	// rather than bytes.
	Files bool
}

// Error gives the limit, its bound and what was used.
func (e *ExceededError) Error() string {
	return fmt.Sprintf("limit %s reached: used %d of %d", e.Kind, e.Used, e.Limit)
}
