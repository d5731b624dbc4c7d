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

// TurnStarted opens a turn. The user's message follows.
type TurnStarted struct {
	// Client is the label of the user who started it, such as http:alice or
	// uid:1000, absent if unknown.
	Client string `json:"client,omitempty"`
	// Budget has the limits in force: the session's per-turn limits, the rest
	// of its total ones, or lower ones that the client asked for.
	Budget Budget `json:"budget,omitzero"`
	// Traceparent is the client's span, as [ParseTraceparent] returns it,
	// absent if the client named none.
	Traceparent string `json:"traceparent,omitempty"`
}

var traceparentPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$`)
})

// ParseTraceparent returns the value of a W3C Trace Context traceparent header
// in version 00, with no flag but sampled. It leaves out additions of later
// versions, and returns "" for an invalid value.
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
	// By is who cancelled it: user (named in Client), signal, or session if the
	// session ended without either.
	By         string       `json:"by"`
	Client     string       `json:"client,omitempty"`
	ModelCalls int          `json:"llm_call_count"`
	ToolCalls  int          `json:"tool_call_count"`
	Usage      limits.Usage `json:"usage"`
	WallMS     int64        `json:"wall_ms"`
}

// ModelCallStarted reports a request to the model.
type ModelCallStarted loop.ModelCallStarted

// ModelCallCompleted reports the model's answer.
type ModelCallCompleted loop.ModelCallCompleted

// ModelCallFailed reports a request without an answer.
type ModelCallFailed loop.ModelCallFailed

// Message is one whole message of the history. Resume, replay and exports are
// made from messages.
//
//	{"role":"assistant","blocks":[{"tool_use":{"id":"tu_…","name":"shell","input":{"command":"sh test.sh"}}}]}
type Message struct {
	Role   loop.Role    `json:"role"`
	Blocks []loop.Block `json:"blocks"`
	// Client is the label of the user who sent it, absent for other roles.
	Client string `json:"client,omitempty"`
	// Thread is the number of the conversation, from 1, if it is of a program in the
	// sandbox; see [BridgeModelCall]. Its calls and results are the program's own.
	Thread int `json:"thread,omitempty"`
}

// ContextShortened reports that requests shorten more old tool results, because
// the model's context window is nearly full.
type ContextShortened loop.ContextShortened

func (c ContextShortened) String() string {
	return fmt.Sprintf("the context window is nearly full: %d old tool results are shortened in requests, by %d bytes", c.Results, c.Bytes)
}

// ContextCompacted reports that a summary replaces the oldest messages in
// requests. The session's last one counts.
//
//	{"summary":"The tests of …","messages":240,"kept":[0,1],"profile":"main","model":{…},"usage":{…},"bytes_before":310221,"bytes_after":4210}
type ContextCompacted loop.ContextCompacted

// String describes what was replaced.
func (c ContextCompacted) String() string {
	return fmt.Sprintf("the context window is nearly full: requests have a summary of %d bytes in place of %d bytes of old messages", c.BytesAfter, c.BytesBefore)
}

// ContextCompactionFailed reports that a summary could not be used. Requests
// keep the messages.
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

// ConfirmationRequested is a question to a person.
type ConfirmationRequested approval.Question

// ToolActivated reports that the model loaded an MCP tool, which it is then
// offered. A resumed session has the tools that were loaded before.
//
//	{"tool_use_id":"tu_1","tool_name":"github/search","definition":"…","by":"search"}
type ToolActivated discovery.Activation

// ConfirmationResolved is the answer to a question.
type ConfirmationResolved approval.Resolution

// ConfirmationAttempted is an answer that changed nothing: an earlier decision
// stands, or there was no such question.
//
//	{"confirmation_request_id":"00ff…","tool_use_id":"tu_…","decision":"allow","scope":"once","by":"http","outcome":"resolved_already","recorded_decision":"deny","recorded_by":"user"}
type ConfirmationAttempted approval.Attempt

// BudgetWarning reports that four fifths of a limit are used.
type BudgetWarning loop.BudgetWarning

func (b BudgetWarning) String() string {
	used, limit, what := strconv.FormatInt(b.Used, 10), strconv.FormatInt(b.Limit, 10), string(b.What)
	switch b.What {
	case limits.KindCost:
		used = CostUSD(&b.Used)
		limit = CostUSD(&b.Limit)
		what = "US dollars"
	case limits.KindToolCalls:
		what = "tool calls"
	case limits.KindWallTime:
		used = (time.Duration(b.Used) * time.Millisecond).String()
		limit = (time.Duration(b.Limit) * time.Millisecond).String()
		what = "of wall time"
	}
	return fmt.Sprintf("%s of %s %s%s used", used, limit, what, ofCeiling(b.Period, b.Profile))
}

// Warning is a fact that an operator or user should see.
type Warning struct {
	CallID  string `json:"tool_use_id,omitempty"`
	Message string `json:"message"`
	// Requested reports that a person asked for what the message says was done.
	Requested bool `json:"requested,omitempty"`
}
