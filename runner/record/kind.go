package record

import "slices"

// Kind is the kind of a record. Each kind has one payload type; see [Payloads].
type Kind string

// The kinds of this version. Readers skip kinds that they don't know.
const (
	KindSessionCreated        Kind = "session.created"
	KindSessionResumed        Kind = "session.resumed"
	KindSessionEnded          Kind = "session.ended"
	KindSandboxStarted        Kind = "sandbox.started"
	KindSandboxLost           Kind = "sandbox.lost"
	KindSandboxRestarted      Kind = "sandbox.restarted"
	KindUserCommandStarted    Kind = "sandbox.exec_started"
	KindUserCommandEnded      Kind = "sandbox.exec_ended"
	KindBackgroundEnded       Kind = "sandbox.background_ended"
	KindTurnStarted           Kind = "turn.started"
	KindTurnCompleted         Kind = "turn.completed"
	KindTurnCancelled         Kind = "turn.cancelled"
	KindModelCallStarted      Kind = "llm.call_started"
	KindModelCallCompleted    Kind = "llm.call_completed"
	KindModelCallFailed       Kind = "llm.call_failed"
	KindMessage               Kind = "message"
	KindContextShortened      Kind = "context.shortened"
	KindContextCompacted      Kind = "context.compacted"
	KindCompactionFailed      Kind = "context.compaction_failed"
	KindToolCalled            Kind = "tool.called"
	KindToolCompleted         Kind = "tool.completed"
	KindToolFailed            Kind = "tool.failed"
	KindToolInputInvalid      Kind = "tool.input_invalid"
	KindToolActivated         Kind = "tool.activated"
	KindConfirmationRequested Kind = "tool.confirmation_requested"
	KindConfirmationResolved  Kind = "tool.confirmation_resolved"
	KindConfirmationAttempted Kind = "tool.confirmation_attempted"
	KindNetworkOpened         Kind = "network.opened"
	KindNetworkClosed         Kind = "network.closed"
	KindNetworkDenied         Kind = "network.denied"
	KindBridgeModelCall       Kind = "bridge.model_call"
	KindWorkerModelCall       Kind = "worker.model_call"
	KindWorkerToolCall        Kind = "worker.inner_call"
	KindWorkerInputInvalid    Kind = "worker.inner_validation_fail"
	KindWorkerCostWarning     Kind = "worker.tool_cost_warning"
	KindMCPServerStarted      Kind = "mcp.server_started"
	KindMCPServerFailed       Kind = "mcp.server_failed"
	KindMCPServerStopped      Kind = "mcp.server_stopped"
	KindMCPToolsChanged       Kind = "mcp.tools_changed"
	KindMCPRequestRefused     Kind = "mcp.request_refused"
	KindVerification          Kind = "result.verified"
	KindBudgetWarning         Kind = "budget.warning"
	KindWarning               Kind = "warning"
)

// Payload is the content of a record, a struct. docs/record.schema.json
// describes its JSON form.
type Payload interface {
	// Kind is the kind of all records with this type of payload.
	Kind() Kind
}

// Payloads returns the zero payload of each kind, in the order in which they
// usually first occur in a session.
func Payloads() []Payload {
	return []Payload{
		SessionCreated{},
		TurnStarted{},
		Message{},
		ModelCallStarted{},
		ModelCallCompleted{},
		ModelCallFailed{},
		ContextShortened{},
		ContextCompacted{},
		ContextCompactionFailed{},
		SandboxStarted{},
		SandboxLost{},
		SandboxRestarted{},
		UserCommandStarted{},
		UserCommandEnded{},
		BackgroundEnded{},
		MCPServerStarted{},
		MCPServerFailed{},
		MCPServerStopped{},
		MCPToolsChanged{},
		MCPRequestRefused{},
		ConfirmationRequested{},
		ConfirmationResolved{},
		ConfirmationAttempted{},
		ToolCalled{},
		BridgeModelCall{},
		WorkerModelCall{},
		WorkerToolCall{},
		WorkerInputInvalid{},
		WorkerCostWarning{},
		NetworkOpened{},
		NetworkClosed{},
		NetworkDenied{},
		ToolCompleted{},
		ToolFailed{},
		ToolInputInvalid{},
		ToolActivated{},
		BudgetWarning{},
		Warning{},
		TurnCompleted{},
		TurnCancelled{},
		Verification{},
		SessionResumed{},
		SessionEnded{},
	}
}

// Kind implements [Payload].
func (SessionCreated) Kind() Kind { return KindSessionCreated }

// Kind implements [Payload].
func (SessionResumed) Kind() Kind { return KindSessionResumed }

// Kind implements [Payload].
func (SessionEnded) Kind() Kind { return KindSessionEnded }

// Kind implements [Payload].
func (SandboxStarted) Kind() Kind { return KindSandboxStarted }

// Kind implements [Payload].
func (SandboxLost) Kind() Kind { return KindSandboxLost }

// Kind implements [Payload].
func (SandboxRestarted) Kind() Kind { return KindSandboxRestarted }

// Kind implements [Payload].
func (TurnStarted) Kind() Kind { return KindTurnStarted }

// Kind implements [Payload].
func (TurnCompleted) Kind() Kind { return KindTurnCompleted }

// Kind implements [Payload].
func (Verification) Kind() Kind { return KindVerification }

// Kind implements [Payload].
func (TurnCancelled) Kind() Kind { return KindTurnCancelled }

// Kind implements [Payload].
func (ModelCallStarted) Kind() Kind { return KindModelCallStarted }

// Kind implements [Payload].
func (ModelCallCompleted) Kind() Kind { return KindModelCallCompleted }

// Kind implements [Payload].
func (ModelCallFailed) Kind() Kind { return KindModelCallFailed }

// Kind implements [Payload].
func (ContextShortened) Kind() Kind { return KindContextShortened }

// Kind implements [Payload].
func (ContextCompacted) Kind() Kind { return KindContextCompacted }

// Kind implements [Payload].
func (ContextCompactionFailed) Kind() Kind { return KindCompactionFailed }

// Kind implements [Payload].
func (Message) Kind() Kind { return KindMessage }

// Kind implements [Payload].
func (ToolCalled) Kind() Kind { return KindToolCalled }

// Kind implements [Payload].
func (ToolCompleted) Kind() Kind { return KindToolCompleted }

// Kind implements [Payload].
func (ToolFailed) Kind() Kind { return KindToolFailed }

// Kind implements [Payload].
func (ToolInputInvalid) Kind() Kind { return KindToolInputInvalid }

// Kind implements [Payload].
func (ToolActivated) Kind() Kind { return KindToolActivated }

// Kind implements [Payload].
func (ConfirmationRequested) Kind() Kind { return KindConfirmationRequested }

// Kind implements [Payload].
func (ConfirmationResolved) Kind() Kind { return KindConfirmationResolved }

// Kind implements [Payload].
func (ConfirmationAttempted) Kind() Kind { return KindConfirmationAttempted }

// Kind implements [Payload].
func (NetworkOpened) Kind() Kind { return KindNetworkOpened }

// Kind implements [Payload].
func (NetworkClosed) Kind() Kind { return KindNetworkClosed }

// Kind implements [Payload].
func (NetworkDenied) Kind() Kind { return KindNetworkDenied }

// Kind implements [Payload].
func (BudgetWarning) Kind() Kind { return KindBudgetWarning }

// Kind implements [Payload].
func (Warning) Kind() Kind { return KindWarning }

// AuditKinds are the kinds that tell who did what, who allowed it, and in which
// sandbox. Retention (sessiondir.Prune) keeps their records.
func AuditKinds() []Kind {
	return []Kind{
		KindSessionCreated, KindSessionResumed, KindSessionEnded,
		KindSandboxStarted, KindSandboxLost, KindSandboxRestarted,
		KindUserCommandStarted, KindUserCommandEnded,
		KindConfirmationRequested, KindConfirmationResolved, KindConfirmationAttempted,
		KindMCPServerStarted, KindMCPServerFailed, KindMCPServerStopped, KindMCPToolsChanged, KindMCPRequestRefused,
		KindNetworkOpened, KindNetworkClosed, KindNetworkDenied,
	}
}

// IsAudited reports whether records of a kind are audit records.
func IsAudited(k Kind) bool { return slices.Contains(AuditKinds(), k) }

// AuditFile is the name of a trace that retention has shortened: the unchanged
// lines of [AuditKinds], and an [Omission] for each run of others.
const AuditFile = "audit.jsonl"
