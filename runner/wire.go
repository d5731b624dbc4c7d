package runner

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
)

func wireLimit(e *limits.ExceededError) *record.Limit {
	if e == nil {
		return nil
	}
	return &record.Limit{Kind: e.Kind, Limit: e.Limit, Used: e.Used}
}

func newToolCalled(e dispatch.Called) record.ToolCalled {
	return record.ToolCalled{
		CallID: e.CallID, Name: e.Name, InputHash: e.InputHash, InputBytes: e.InputBytes,
		Class: e.Class, Rule: e.Rule, Summary: e.Summary,
	}
}

func newToolCompleted(e dispatch.Completed) record.ToolCompleted {
	p := record.ToolCompleted{
		CallID: e.CallID, Name: e.Name, Success: e.Success, OutputBytes: e.OutputBytes, Truncated: e.Truncated,
		LatencyMS: e.Latency.Milliseconds(), FilesModified: record.NonNil(e.FilesModified), Metadata: e.Metadata,
	}
	if e.Command != "" {
		p.Command = &e.Command
	}
	return p
}

func newToolFailed(e dispatch.Failed) record.ToolFailed {
	return record.ToolFailed{
		CallID: e.CallID, Name: e.Name, Class: e.Class, Reason: e.Reason, Message: e.Message, ErrorID: e.ErrorID,
		LatencyMS: e.Latency.Milliseconds(), FilesModified: record.NonNil(e.FilesModified), Partial: e.Partial,
	}
}

// maxRecordedDiff bounds the diff of a record; the file itself is in the
// workspace.
const maxRecordedDiff = 64 << 10

func newConfirmationRequested(c approval.Confirmation) record.ConfirmationRequested {
	var command *string
	if c.Class == tools.ClassExecute {
		command = &c.Summary
	}
	return record.ConfirmationRequested{
		CallID: c.CallID, Name: c.Name, Class: c.Class, RequestID: c.ID, Summary: c.Summary, Command: command,
		InputHash: c.InputHash, Display: c.Input, Hidden: c.Hidden, Projected: record.NonNil(c.Projected), Diff: tools.Elide(c.Diff, maxRecordedDiff),
		Runs: c.Runs, Dangerous: c.Dangerous, Notices: c.Notices, Covers: c.Covers, Changed: c.Changed, Scopes: c.Scopes, Phrase: c.Phrase,
		ExpiresAt: c.Expires.UTC().Format(record.TimeLayout),
	}
}

// newConfirmationAttempted is an answer that changed nothing. What a stranger gave as an id is
// cut: it is a record all the same.
func newConfirmationAttempted(e dispatch.ConfirmationAttempted) record.ConfirmationAttempted {
	const most = 128
	p := record.ConfirmationAttempted{
		RequestID: strings.ToValidUTF8(e.ConfirmationID[:min(len(e.ConfirmationID), most)], ""), CallID: e.CallID,
		Decision: e.Decision, Scope: e.Scope, By: e.Client, Outcome: record.AttemptResolved, Recorded: e.Recorded, RecordedBy: e.By, Omitted: e.Omitted,
	}
	switch {
	case e.Forbidden:
		p.Outcome = record.AttemptForbidden
	case e.Recorded == "":
		p.Outcome = record.AttemptUnknown
	case e.By == "timeout":
		p.Outcome = record.AttemptExpired
	}
	return p
}

func shortenedText(e loop.ContextShortened) string {
	return fmt.Sprintf("near the model's context window: %d old tool results are shortened in what is sent, by %d bytes", e.Results, e.Bytes)
}
