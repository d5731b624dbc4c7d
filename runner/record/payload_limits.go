package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// Resources is limits.Resources in bytes, counts and milliseconds.
type Resources struct {
	MemoryBytes   int64 `json:"memory_bytes"`
	PIDs          int64 `json:"pids"`
	MilliCPUs     int64 `json:"milli_cpus"`
	TmpBytes      int64 `json:"tmp_bytes"`
	HomeBytes     int64 `json:"home_bytes"`
	ShmBytes      int64 `json:"shm_bytes"`
	OpenFiles     int64 `json:"open_files"`
	CommandTimeMS int64 `json:"command_time_ms"`
}

// Budget is limits.Budget in a record. A nil field is no limit.
type Budget struct {
	Rounds       *int64 `json:"rounds,omitempty"`
	ToolCalls    *int64 `json:"tool_calls,omitempty"`
	Tokens       *int64 `json:"tokens,omitempty"`
	CostMicroUSD *int64 `json:"cost_micro_usd,omitempty"`
	WallTimeMS   *int64 `json:"wall_time_ms,omitempty"`
}

// Limit is a limit that was reached.
type Limit limits.ExceededError

// String describes the limit, how much was used and how much was needed.
func (l Limit) String() string {
	amount := func(n int64) string { return strconv.FormatInt(n, 10) }
	what := string(l.Kind)
	switch l.Kind {
	case limits.KindWallTime:
		return fmt.Sprintf("%d.%01d s of wall time", l.Limit/1000, l.Limit%1000/100)
	case limits.KindCost:
		amount, what = func(n int64) string { return CostUSD(&n) }, "US dollars"
	case limits.KindToolCalls:
		what = "tool calls"
	}
	text := amount(l.Limit) + " " + what
	switch {
	case l.Kind == limits.KindCost:
		text = "a cost of " + text
	case l.Limit == 1:
		text = strings.TrimSuffix(text, "s")
	}
	text += ofCeiling(l.Period, l.Profile)
	reserved := ""
	if l.Reserved > 0 {
		reserved = ", " + amount(l.Reserved) + " reserved by requests under way"
	}
	if l.Needed > 0 || l.Reserved > 0 {
		text += fmt.Sprintf(" (%s used%s", amount(l.Used-l.Reserved), reserved)
		if l.Needed > 0 {
			text += ", and the next request may use " + amount(l.Needed)
		}
		text += ")"
	}
	return text
}

// ofCeiling returns the text after a limit that is a ceiling.
func ofCeiling(p limits.Period, profile string) string {
	if p == "" {
		return ""
	}
	text := " per " + string(p)
	if profile != "" {
		text += " with model " + profile
	}
	return text
}

// NewResources converts resources for a record.
func NewResources(r limits.Resources) Resources {
	return Resources{
		MemoryBytes: r.MemoryBytes, PIDs: r.PIDs, MilliCPUs: r.MilliCPUs,
		TmpBytes: r.TmpBytes, HomeBytes: r.HomeBytes, ShmBytes: r.ShmBytes,
		OpenFiles: r.OpenFiles, CommandTimeMS: r.CommandTime.Milliseconds(),
	}
}

// NewBudget converts a budget for a record.
func NewBudget(b limits.Budget) Budget {
	out := Budget{Rounds: b.Rounds, ToolCalls: b.ToolCalls, Tokens: b.Tokens, CostMicroUSD: b.CostMicroUSD}
	if b.WallTime != nil {
		out.WallTimeMS = new(b.WallTime.Milliseconds())
	}
	return out
}
