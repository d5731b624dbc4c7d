package runner

import (
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
)

func wireResources(r limits.Resources) Resources {
	return Resources{
		MemoryBytes: r.MemoryBytes, PIDs: r.PIDs, MilliCPUs: r.MilliCPUs,
		TmpBytes: r.TmpBytes, HomeBytes: r.HomeBytes, ShmBytes: r.ShmBytes,
		OpenFiles: r.OpenFiles, CommandTimeMS: r.CommandTime.Milliseconds(),
	}
}

func wireBudget(b limits.Budget) Budget {
	out := Budget{Rounds: b.Rounds, ToolCalls: b.ToolCalls, Tokens: b.Tokens, CostMicroUSD: b.CostMicroUSD}
	if b.WallTime != nil {
		out.WallTimeMS = new(b.WallTime.Milliseconds())
	}
	return out
}

func wireLimit(e *limits.ExceededError) *Limit {
	if e == nil {
		return nil
	}
	return &Limit{Kind: e.Kind, Limit: e.Limit, Used: e.Used}
}

// costUSD is decimal dollars with six digits, or "unknown".
func costUSD(micro *int64) string {
	if micro == nil {
		return "unknown"
	}
	return fmt.Sprintf("%d.%06d", *micro/1_000_000, *micro%1_000_000)
}

func milliseconds(d time.Duration) int64 { return d.Milliseconds() }

// listed returns s, or an empty list: the wire has no null lists.
func listed[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
