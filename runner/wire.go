package runner

import (
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
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

func called(e tools.Called) ToolCalled {
	return ToolCalled{
		CallID: e.CallID, Name: e.Name, InputHash: e.InputHash, InputBytes: e.InputBytes,
		Class: e.Class, Rule: e.Rule, Summary: e.Summary,
	}
}

func completed(e tools.Completed) ToolCompleted {
	p := ToolCompleted{
		CallID: e.CallID, Name: e.Name, Success: e.Success, OutputBytes: e.OutputBytes, Truncated: e.Truncated,
		LatencyMS: milliseconds(e.Latency), FilesModified: listed(e.FilesModified), Metadata: e.Metadata,
	}
	if e.Command != "" {
		p.Command = &e.Command
	}
	return p
}

func failed(e tools.Failed) ToolFailed {
	return ToolFailed{
		CallID: e.CallID, Name: e.Name, Class: e.Class, Reason: e.Reason, Message: e.Message, ErrorID: e.ErrorID,
		LatencyMS: milliseconds(e.Latency), FilesModified: listed(e.FilesModified), Partial: e.Partial,
	}
}

// maxRecordedDiff bounds the diff of a record; the file itself is in the
// workspace.
const maxRecordedDiff = 64 << 10

func requested(c tools.Confirmation) ConfirmationRequested {
	var command *string
	if c.Class == tools.ClassExecute {
		command = &c.Summary
	}
	return ConfirmationRequested{
		CallID: c.CallID, Name: c.Name, Class: c.Class, RequestID: c.ID, Summary: c.Summary, Command: command,
		InputHash: c.InputHash, Display: c.Input, Hidden: c.Hidden, Projected: listed(c.Projected), Diff: tools.Elide(c.Diff, maxRecordedDiff),
		Runs: c.Runs, Dangerous: c.Dangerous, Notices: c.Notices, Covers: c.Covers, Changed: c.Changed, Scopes: c.Scopes, Phrase: c.Phrase,
		ExpiresAt: c.Expires.UTC().Format(timeLayout),
	}
}

// attempted is an answer that changed nothing. What a stranger gave as an id is
// cut: it is a record all the same.
func attempted(e tools.ConfirmationAttempted) ConfirmationAttempted {
	const most = 128
	p := ConfirmationAttempted{
		RequestID: strings.ToValidUTF8(e.ConfirmationID[:min(len(e.ConfirmationID), most)], ""), CallID: e.CallID,
		Decision: e.Decision, Scope: e.Scope, By: e.Client, Outcome: AttemptResolved, Recorded: e.Recorded, RecordedBy: e.By, Omitted: e.Omitted,
	}
	switch {
	case e.Forbidden:
		p.Outcome = AttemptForbidden
	case e.Recorded == "":
		p.Outcome = AttemptUnknown
	case e.By == "timeout":
		p.Outcome = AttemptExpired
	}
	return p
}

func shortenedText(e loop.ContextShortened) string {
	return fmt.Sprintf("near the model's context window: %d old tool results are shortened in what is sent, by %d bytes", e.Results, e.Bytes)
}
