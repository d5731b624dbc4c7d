package record

import (
	"fmt"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// WorkerModelCall is a model request of a worker that confer or coordinate
// called, and how it ended. It counts towards the session's limits.
//
//	{"tool_use_id":"tu_…","worker":"critic careful","round":1,"profile":"careful","attempt":1,"model":{…},"latency_ms":812,"usage":{…},"finish":"stop"}
type WorkerModelCall struct {
	// CallID is the call of confer or coordinate. Worker is the worker's name
	// in it.
	CallID string `json:"tool_use_id"`
	Worker string `json:"worker"`
	EndedModelCall
}

// EndedModelCall is a model request outside the session's turns, and how it ended.
type EndedModelCall struct {
	loop.ModelCall

	LatencyMS int64        `json:"latency_ms"`
	Usage     limits.Usage `json:"usage"`
	Finish    string       `json:"finish,omitempty"` // absent if it failed
	// The fields below are as in [ModelCallFailed].
	Class   loop.ErrorClass `json:"error_class,omitempty"`
	Status  int             `json:"http_status,omitempty"`
	Message string          `json:"error_message,omitempty"`
	ErrorID string          `json:"error_id,omitempty"`
}

// BridgeModelCall is a model request of a program in the sandbox, such as another
// agent, through the bridge. It counts towards the session's limits. The bodies are in
// [BridgeFile].
//
//	{"call":3,"command":1,"protocol":"anthropic","endpoint":"messages","asked":"claude-opus-5","profile":"main","model":{…},"latency_ms":812,"usage":{…},"finish":"tool_use"}
type BridgeModelCall struct {
	// Call is the request's number in the session, from 1. Command is the number of the
	// command that sent it, absent if unknown.
	Call    int64 `json:"call"`
	Command int   `json:"command,omitempty"`
	// Protocol is the request's API, and Endpoint its name there, or the method and path
	// if it is unknown. Asked is the model that the request names.
	Protocol string `json:"protocol"`
	Endpoint string `json:"endpoint"`
	Asked    string `json:"asked,omitempty"`
	EndedModelCall

	// Estimated reports that the usage is an estimate: the provider counted nothing, or
	// less than is plausible.
	Estimated bool `json:"estimated,omitempty"`
	// Withheld are tools of the provider that were taken out of the request.
	Withheld []string `json:"withheld,omitempty"`
	// Sent and Received are the sizes of the bodies in bytes.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
}

// BridgeFile is the file beside the trace with the bodies of [BridgeModelCall]s, one
// [BridgeBodies] per line.
const BridgeFile = "bridge.jsonl"

// BridgeBodies are the bodies of one request and its answer, without secrets. Invalid
// UTF-8 is replaced.
type BridgeBodies struct {
	Call int64 `json:"call"`
	// Request follows the first Shared bytes of the request of call Base, and precedes
	// its last SharedEnd bytes: conversations repeat what was said. Base is absent if
	// Request is whole.
	Base      int64  `json:"base,omitempty"`
	Shared    int    `json:"shared,omitempty"`
	SharedEnd int    `json:"shared_end,omitempty"`
	Request   string `json:"request"`
	Answer    string `json:"answer"`
}

// BridgeTotals sums up the session's [BridgeModelCall]s.
type BridgeTotals struct {
	Calls    int64 `json:"calls"`
	Answered int64 `json:"answered"`
	// Failed counts requests that the provider refused, or did not answer in full.
	Failed int64 `json:"failed,omitempty"`
	// Refused counts requests that were not sent: of other endpoints or models, or over
	// a limit.
	Refused int64 `json:"refused,omitempty"`
	// Unrecorded counts requests without a record: of those that used no tokens, only the
	// first 1,000 have one.
	Unrecorded int64 `json:"unrecorded,omitempty"`
	// BodiesSHA256 is the hash of [BridgeFile]. BodiesOmitted counts requests that it
	// doesn't have, because it is full.
	BodiesSHA256  string `json:"bodies_sha256,omitempty"`
	BodiesOmitted int64  `json:"bodies_omitted,omitempty"`
}

// WorkerToolCall is a worker's call and how it ended.
//
//	{"tool_use_id":"tu_…","worker":"careful","hop":1,"tool_name":"fetch","status":"ok","inner_call_id":"tu_…","summary":"https://…","input_hash":"…"}
type WorkerToolCall struct {
	// CallID and Worker are as in [WorkerModelCall].
	CallID string `json:"tool_use_id"`
	Worker string `json:"worker"`
	Hop    int    `json:"hop"`       // from 1
	Name   string `json:"tool_name"` // as the worker wrote it, safe to show
	Status string `json:"status"`    // ok, refused, parse_error, hop_budget_exhausted, cost_cap_exceeded
	// InnerID, Summary and InputHash are as in [ToolCalled], absent if the call
	// did not run.
	InnerID   string `json:"inner_call_id,omitempty"`
	Summary   string `json:"summary,omitempty"`
	InputHash string `json:"input_hash,omitempty"`
}

func (c WorkerToolCall) String() string {
	text := fmt.Sprintf("%s: %s, call %d: %s", c.Worker, c.Name, c.Hop, c.Status)
	if c.Summary != "" {
		text += ", " + c.Summary
	}
	return text
}

// WorkerInputInvalid reports that the schema refused the input of a worker's
// call.
type WorkerInputInvalid struct {
	// CallID and Worker are as in [WorkerModelCall], Hop and Name as in
	// [WorkerToolCall].
	CallID string `json:"tool_use_id"`
	Worker string `json:"worker"`
	Hop    int    `json:"hop"`
	Name   string `json:"tool_name"`
	Error  string `json:"schema_error"`
}

// WorkerCostWarning reports, once for each worker, that its cost is above a cap
// that is not enforced.
type WorkerCostWarning struct {
	CallID      string  `json:"tool_use_id"`
	Worker      string  `json:"worker"`
	CapUSD      float64 `json:"cap_usd"`
	ObservedUSD float64 `json:"observed_usd"`
}

func (w WorkerCostWarning) String() string {
	return fmt.Sprintf("%s cost %.4f USD, above the cap of %.4f USD", w.Worker, w.ObservedUSD, w.CapUSD)
}

// Kind implements [Payload].
func (WorkerModelCall) Kind() Kind { return KindWorkerModelCall }

// Kind implements [Payload].
func (BridgeModelCall) Kind() Kind { return KindBridgeModelCall }

// Kind implements [Payload].
func (WorkerToolCall) Kind() Kind { return KindWorkerToolCall }

// Kind implements [Payload].
func (WorkerInputInvalid) Kind() Kind { return KindWorkerInputInvalid }

// Kind implements [Payload].
func (WorkerCostWarning) Kind() Kind { return KindWorkerCostWarning }
