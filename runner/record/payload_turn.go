package record

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/discovery"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// TurnStarted opens a turn; the user's message follows.
type TurnStarted struct {
	// Client is the label of the user who started it, such as http:alice or
	// uid:1000; absent where it is unknown.
	Client string `json:"client,omitempty"`
	// Budget has the limits in force: those of the session, less what its earlier turns
	// used of the session's own, or lower ones that the client asked for.
	Budget Budget `json:"budget,omitzero"`
	// Traceparent is the span in which the client started it, as [ParseTraceparent]
	// returns it; absent where the client named none.
	Traceparent string `json:"traceparent,omitempty"`
}

var traceparentPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$`)
})

// ParseTraceparent returns the value of a traceparent header, as W3C Trace Context defines
// it, in version 00 and with the flag sampled alone, or "" for a value that has to be
// ignored: what a later version adds is not known, and left out.
func ParseTraceparent(header string) string {
	m := traceparentPattern().FindStringSubmatch(header)
	if m == nil || m[1] == "ff" || m[1] == "00" && m[5] != "" || strings.Trim(m[2], "0") == "" || strings.Trim(m[3], "0") == "" {
		return ""
	}
	flags, err := strconv.ParseUint(m[4], 16, 8)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%02x", m[2], m[3], flags&1)
}

// TurnCompleted closes a turn that was not cancelled.
type TurnCompleted struct {
	Reason     loop.StopReason `json:"stop_reason"`
	Truncated  bool            `json:"truncated"`
	Limit      *Limit          `json:"limit,omitempty"`
	ModelCalls int             `json:"llm_call_count"`
	ToolCalls  int             `json:"tool_call_count"`
	Usage      limits.Usage    `json:"usage"`
	WallMS     int64           `json:"wall_ms"`
}

// TurnCancelled closes a turn that a person or a signal ended.
type TurnCancelled struct {
	Reason string `json:"reason"` // interrupted, terminated, cancelled
	// By is who cancelled it: user (Client is the label), signal, or session,
	// where the session ended without either.
	By         string       `json:"by"`
	Client     string       `json:"client,omitempty"`
	ModelCalls int          `json:"llm_call_count"`
	ToolCalls  int          `json:"tool_call_count"`
	Usage      limits.Usage `json:"usage"`
	WallMS     int64        `json:"wall_ms"`
}

// ModelCallStarted reports a request to the model.
type ModelCallStarted loop.ModelCallStarted

// ModelCallCompleted reports its answer.
type ModelCallCompleted loop.ModelCallCompleted

// ModelCallFailed reports that there is no answer.
type ModelCallFailed loop.ModelCallFailed

// Message is one message of the history, whole: what resume, replay and
// exports are made from.
//
//	{"role":"assistant","blocks":[{"tool_use":{"id":"tu_…","name":"shell","input":{"command":"sh test.sh"}}}]}
type Message struct {
	Role   loop.Role    `json:"role"`
	Blocks []loop.Block `json:"blocks"`
	// Client is the label of the user who sent it; absent in other roles.
	Client string `json:"client,omitempty"`
}

// ContextShortened reports that further old tool results are shortened in requests,
// because the model's context window is nearly full.
type ContextShortened loop.ContextShortened

// String describes what was shortened.
func (c ContextShortened) String() string {
	return fmt.Sprintf("the context window is nearly full: %d old tool results are shortened in requests, by %d bytes", c.Results, c.Bytes)
}

// ContextCompacted reports that a summary replaces the oldest messages in requests. The
// last one of a session counts.
//
//	{"summary":"The tests of …","messages":240,"kept":[0,1],"profile":"main","model":{…},"usage":{…},"bytes_before":310221,"bytes_after":4210}
type ContextCompacted loop.ContextCompacted

// String describes what was replaced.
func (c ContextCompacted) String() string {
	return fmt.Sprintf("the context window is nearly full: requests have a summary of %d bytes in place of %d bytes of old messages", c.BytesAfter, c.BytesBefore)
}

// ContextCompactionFailed reports that a summary could not be used. Requests go on with
// the messages.
type ContextCompactionFailed loop.ContextCompactionFailed

// String describes the failure.
func (c ContextCompactionFailed) String() string {
	reasons := map[loop.CompactionFailure]string{
		loop.CompactionModelFailed: "the model failed", loop.CompactionEmpty: "it is empty",
		loop.CompactionCut: "it was cut", loop.CompactionTooLong: "it is not shorter",
	}
	return "the context window is nearly full, and old messages could not be summarized: " + cmp.Or(reasons[c.Reason], string(c.Reason))
}

// ToolCalled reports that a call holds its slot and starts. Its input is in the
// assistant's message.
type ToolCalled dispatch.Called

// ToolCompleted is the end of a call that ran to its end.
type ToolCompleted dispatch.Completed

// ToolFailed is the end of a call that did not.
type ToolFailed dispatch.Failed

// ToolInputInvalid is the end of a call whose input the schema refuses.
type ToolInputInvalid dispatch.InputInvalid

// ConfirmationRequested asks a person.
type ConfirmationRequested approval.Question

// ToolActivated is a tool of a server that the model has loaded, and is offered from then
// on. A session that goes on has the tools that were loaded before.
//
//	{"tool_use_id":"tu_1","tool_name":"github/search","definition":"…","by":"search"}
type ToolActivated discovery.Activation

// ConfirmationResolved is the answer to a question.
type ConfirmationResolved approval.Resolution

// ConfirmationAttempted is an answer that changed nothing: the decision that
// was recorded before stands, or there was no such question.
//
//	{"confirmation_request_id":"00ff…","tool_use_id":"tu_…","decision":"allow","scope":"once","by":"http","outcome":"resolved_already","recorded_decision":"deny","recorded_by":"user"}
type ConfirmationAttempted approval.Attempt

// BudgetWarning reports that four fifths of a limit are used.
type BudgetWarning loop.BudgetWarning

// String describes how near the limit is.
func (b BudgetWarning) String() string {
	used, limit, what := strconv.FormatInt(b.Used, 10), strconv.FormatInt(b.Limit, 10), string(b.What)
	switch b.What {
	case limits.KindCost:
		used, limit, what = CostUSD(&b.Used), CostUSD(&b.Limit), "US dollars"
	case limits.KindToolCalls:
		what = "tool calls"
	case limits.KindWallTime:
		used, limit, what = (time.Duration(b.Used) * time.Millisecond).String(), (time.Duration(b.Limit) * time.Millisecond).String(), "of wall time"
	}
	return fmt.Sprintf("%s of %s %s%s used", used, limit, what, ofCeiling(b.Period, b.Profile))
}

// Warning is a fact that an operator or user should see.
type Warning struct {
	CallID  string `json:"tool_use_id,omitempty"`
	Message string `json:"message"`
	// Requested is set for what a person asked for and what was done.
	Requested bool `json:"requested,omitempty"`
}
