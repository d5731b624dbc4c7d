package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// session makes spans from the records of one session:
//
//	invoke_agent caisson          turn.started … turn.completed; a resumed turn begins with its
//	│                             next record
//	├─ start_sandbox              sandbox.started
//	├─ chat MODEL                 llm.call_started … llm.call_completed, one per attempt
//	└─ execute_tool NAME          tool.confirmation_requested or tool.called … tool.completed
//	   └─ wait_for_approval       tool.confirmation_requested … tool.confirmation_resolved
//
// A span begins and ends at the times of its records.
type session struct {
	*Exporter

	id string

	mu      sync.Mutex
	model   loop.ModelInfo
	offered map[tools.Name]bool
	turn    *turn
	// last is the turn that ended last.
	last *turn
	// unfinished is the turn that had no end when the session was resumed.
	unfinished string
	chats      map[string]*chat // by the record of their start
	calls      map[string]*call
	execs      map[string]time.Time // starts of the user's commands
	history    history
}

type turn struct {
	ctx   context.Context
	span  trace.Span // nil in a session without a model
	start time.Time
	// sandbox is when a sandbox was attested in this turn, or zero.
	sandbox time.Time
	// held are spans whose content has not been recorded yet. input and output
	// are the user's message and the last answer, if content is exported.
	held          []held
	input, output *message
}

type chat struct {
	span  trace.Span
	start time.Time
	// labels are the request's attributes in metrics.
	labels []attribute.KeyValue
}

// call is a tool call that is under way. Its span is made when it ends, because
// only then is its start known.
type call struct {
	name      tools.Name
	first     time.Time
	class     tools.Class
	approvals []approvalWait
}

type approvalWait struct {
	start, end time.Time
	resolved   record.ConfirmationResolved
}

func newSession(e *Exporter, id string) *session {
	return &session{
		Exporter: e, id: id, offered: map[tools.Name]bool{},
		chats: map[string]*chat{}, calls: map[string]*call{}, execs: map[string]time.Time{},
	}
}

func (s *session) observeRecord(r record.Record, line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == nil && r.Turn != "" && r.Turn == s.unfinished && r.Kind != record.KindTurnCancelled {
		s.startTurn(r) // it continues without another turn.started
	}
	if r.Kind == record.KindMessage {
		s.addMessage(r)
		return
	}
	payload := record.DecodePayload(r)
	s.emitLog(r, payload, line)
	switch p := payload.(type) {
	case record.SessionCreated:
		s.setSession(p)
	case record.SessionResumed:
		s.setSession(p.SessionCreated)
		s.unfinished = p.Unfinished
	case record.SessionEnded:
		s.endAll(r.Time)
	case record.TurnStarted:
		s.startTurn(r, clientLinks(p)...)
	case record.TurnCompleted:
		s.endTurn(r.Time, string(p.Reason), p)
	case record.TurnCancelled:
		s.endTurn(r.Time, string(loop.StopCancelled), record.TurnCompleted{
			Reason: loop.StopCancelled, ModelCalls: p.ModelCalls, ToolCalls: p.ToolCalls, Usage: p.Usage,
		})
	case record.ModelCallStarted:
		s.startChat(r, p)
	case record.ModelCallCompleted:
		s.completeChat(r, p)
	case record.ModelCallFailed:
		s.failChat(r, p)
	case record.SandboxStarted:
		if s.turn == nil && len(s.execs) == 0 {
			// A turn began the start, and was answered before it was done.
			s.turn = s.last
			defer func() { s.turn = nil }()
		}
		s.addSandbox(r.Time, p.StartMS, p.Attestation)
	case record.SandboxRestarted:
		s.addSandbox(r.Time, p.StartMS, p.Attestation)
	case record.UserCommandStarted:
		s.execs[p.ExecID] = r.Time
	case record.UserCommandEnded:
		s.endExec(r, p)
	default:
		s.observeCall(r, payload)
	}
}

// setSession sets what spans take from session.created, and from session.resumed.
func (s *session) setSession(p record.SessionCreated) {
	s.model = p.Model
	for _, t := range p.Tools {
		s.offered[t.Name] = true
	}
}

// observeCall takes a record of a tool call, or one that becomes an event of
// the turn.
func (s *session) observeCall(r record.Record, payload record.Payload) {
	switch p := payload.(type) {
	case record.ConfirmationRequested:
		c := s.callOf(p.CallID, p.Name, r.Time)
		c.class, c.approvals = p.Class, append(c.approvals, approvalWait{start: r.Time})
	case record.ConfirmationResolved:
		if c := s.calls[p.CallID]; c != nil && len(c.approvals) > 0 {
			a := &c.approvals[len(c.approvals)-1]
			a.end, a.resolved = r.Time, p
		}
	case record.ToolCalled:
		s.callOf(p.CallID, p.Name, r.Time).class = p.Class
	case record.ToolCompleted:
		s.endCall(p.CallID, p.Name, r.Time, p.LatencyMS, "", attribute.Bool("caisson.tool.success", p.Success))
	case record.ToolFailed:
		s.endCall(p.CallID, p.Name, r.Time, p.LatencyMS, string(p.Class))
	case record.ToolInputInvalid:
		s.endCall(p.CallID, p.Name, r.Time, 0, "input_invalid")
	case record.WorkerModelCall:
		s.addChat(r, p.EndedModelCall, "worker")
	case record.BridgeModelCall:
		s.addChat(r, p.EndedModelCall, "bridge")
	case record.WorkerToolCall, record.BudgetWarning, record.NetworkClosed, record.NetworkDenied,
		record.MCPServerStarted, record.MCPServerFailed, record.MCPServerStopped, record.MCPToolsChanged, record.MCPRequestRefused,
		record.SandboxLost, record.Warning, record.WorkerInputInvalid, record.WorkerCostWarning,
		record.ContextShortened, record.ContextCompacted, record.ContextCompactionFailed:
		s.addEvent(r, s.eventAttributes(p)...)
	}
}

// abandonSpans ends the spans of a session that has no end in this program.
func (s *session) abandonSpans(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endAll(at)
}

func (s *session) endAll(at time.Time) {
	if s.turn != nil {
		s.endTurn(at, "session_ended", record.TurnCompleted{})
	}
}

// startSpan starts a span below the turn, or below the remote parent outside of
// a turn.
func (s *session) startSpan(at time.Time, name string, kind trace.SpanKind, attributes ...attribute.KeyValue) trace.Span {
	ctx := s.turnContext()
	if s.turn != nil && at.Before(s.turn.start) {
		at = s.turn.start // it was computed from rounded milliseconds
	}
	_, span := s.tracer.Start(ctx, name, trace.WithTimestamp(at), trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	return span
}

func eventName(k record.Kind) string { return "caisson." + string(k) }

func (s *session) addEvent(r record.Record, attributes ...attribute.KeyValue) {
	if s.turn != nil && s.turn.span != nil {
		s.turn.span.AddEvent(eventName(r.Kind), trace.WithTimestamp(r.Time), trace.WithAttributes(attributes...))
	}
}

func (s *session) startTurn(r record.Record, links ...trace.Link) {
	s.turn, s.unfinished = &turn{ctx: s.parent, start: r.Time}, ""
	if s.model.Model == "" {
		return // the user's own calls: no agent is invoked
	}
	s.turn.ctx, s.turn.span = s.tracer.Start(s.parent, "invoke_agent "+agentName, trace.WithTimestamp(r.Time),
		trace.WithSpanKind(trace.SpanKindInternal), trace.WithLinks(links...), trace.WithAttributes(
			keyOperation.String("invoke_agent"), keyAgent.String(agentName), keyProvider.String(providerName(s.model.Provider)),
			keyAgentVersion.String(s.version), keyRequestModel.String(s.model.Model), keyConversation.String(s.id), attribute.String("caisson.turn.id", r.Turn)))
}

// clientLinks returns the link to the span in which a client started a turn. It
// is not the turn's parent, because its flags would decide whether the turn is
// sampled.
func clientLinks(p record.TurnStarted) []trace.Link {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": p.Traceparent})
	if to := trace.SpanContextFromContext(ctx); to.IsValid() {
		return []trace.Link{{SpanContext: to}}
	}
	return nil
}

// endTurn ends the turn and everything open below it. It has failed unless the
// model answered.
func (s *session) endTurn(at time.Time, reason string, p record.TurnCompleted) {
	t := s.turn
	if t == nil {
		return
	}
	for id, c := range s.chats {
		s.failChatAt(id, c, at, "cancelled")
	}
	for id, c := range s.calls {
		s.endCall(id, c.name, at, 0, "cancelled")
	}
	s.releaseSpans(nil)
	s.setAnswer(t)
	clear(s.history.arguments)
	s.turn, s.last = nil, t
	if t.span == nil {
		return
	}
	labels := []attribute.KeyValue{keyAgent.String(agentName)}
	if reason != string(loop.StopAnswered) {
		labels = append(labels, setError(t.span, reason))
	}
	t.span.SetAttributes(attribute.String("caisson.stop_reason", reason))
	t.span.SetAttributes(usageAttributes(p.Usage)...)
	t.span.End(trace.WithTimestamp(at))
	with := metric.WithAttributes(labels...)
	s.metrics.agent.Record(t.ctx, at.Sub(t.start).Seconds(), with)
	s.metrics.modelCalls.Record(t.ctx, float64(p.ModelCalls), with)
	s.metrics.toolCalls.Record(t.ctx, float64(p.ToolCalls), with)
}

// setError marks a span as failed, and returns the attribute. There are few
// reasons. The text of an error may have content, and is not exported.
func setError(span trace.Span, reason string) attribute.KeyValue {
	span.SetStatus(codes.Error, reason)
	attr := keyError.String(reason)
	span.SetAttributes(attr)
	return attr
}

func (s *session) startChat(r record.Record, p record.ModelCallStarted) {
	s.releaseSpans(nil) // the held spans have no content
	labels := modelAttributes(p.Model)
	span := s.startSpan(r.Time, "chat "+p.Model.Model, trace.SpanKindClient, slices.Concat(labels, []attribute.KeyValue{
		keyConversation.String(s.id), attribute.String("caisson.profile", p.Profile), attribute.Int("caisson.attempt", p.Attempt),
	})...)
	if p.Purpose != "" {
		span.SetAttributes(attribute.String("caisson.purpose", string(p.Purpose)))
	}
	s.setHistory(span)
	s.chats[r.ID] = &chat{span: span, start: r.Time, labels: labels}
}

func (s *session) completeChat(r record.Record, p record.ModelCallCompleted) {
	c := s.chats[r.Parent]
	if c == nil {
		return
	}
	delete(s.chats, r.Parent)
	c.labels = append(c.labels, keyResponseModel.String(p.Model.Model))
	c.span.SetAttributes(keyFinish.StringSlice([]string{p.Finish}), keyResponseModel.String(p.Model.Model))
	c.span.SetAttributes(usageAttributes(p.Usage)...)
	ctx, with := s.turnContext(), metric.WithAttributes(c.labels...)
	s.metrics.operation.Record(ctx, r.Time.Sub(c.start).Seconds(), with)
	s.countTokens(ctx, p.Usage, with)
	if p.FirstDeltaMS != nil {
		first := time.Duration(*p.FirstDeltaMS) * time.Millisecond
		c.span.SetAttributes(keyStream.Bool(true), keyFirstChunk.Float64(first.Seconds()))
		s.metrics.firstChunk.Record(ctx, first.Seconds(), with)
	}
	s.endOrHold(held{span: c.span, end: r.Time, message: r.ID, finish: p.Finish})
}

func (s *session) countTokens(ctx context.Context, u limits.Usage, labels metric.MeasurementOption) {
	s.metrics.tokens.Record(ctx, float64(inputTokens(u)), labels, metric.WithAttributes(keyTokenType.String("input")))
	s.metrics.tokens.Record(ctx, float64(u.OutputTokens), labels, metric.WithAttributes(keyTokenType.String("output")))
}

func (s *session) failChat(r record.Record, p record.ModelCallFailed) {
	c := s.chats[r.Parent]
	if c == nil {
		return
	}
	if p.Status != 0 {
		c.span.SetAttributes(attribute.Int("http.response.status_code", p.Status))
	}
	s.failChatAt(r.Parent, c, r.Time, string(p.Class))
}

func (s *session) addChat(r record.Record, p record.EndedModelCall, purpose string) {
	took, labels := time.Duration(p.LatencyMS)*time.Millisecond, modelAttributes(p.Model)
	span := s.startSpan(r.Time.Add(-took), "chat "+p.Model.Model, trace.SpanKindClient, slices.Concat(labels, usageAttributes(p.Usage), []attribute.KeyValue{
		keyConversation.String(s.id), attribute.String("caisson.profile", p.Profile), attribute.Int("caisson.attempt", p.Attempt), attribute.String("caisson.purpose", purpose),
	})...)
	if p.Class != "" {
		labels = append(labels, setError(span, string(p.Class)))
	}
	ctx, with := s.turnContext(), metric.WithAttributes(labels...)
	s.metrics.operation.Record(ctx, took.Seconds(), with)
	if p.Class == "" {
		s.countTokens(ctx, p.Usage, with)
	}
	span.End(trace.WithTimestamp(r.Time))
}

func (s *session) failChatAt(id string, c *chat, at time.Time, failure string) {
	delete(s.chats, id)
	c.labels = append(c.labels, setError(c.span, failure))
	c.span.End(trace.WithTimestamp(at))
	s.metrics.operation.Record(s.turnContext(), at.Sub(c.start).Seconds(), metric.WithAttributes(c.labels...))
}

func (s *session) callOf(id string, name tools.Name, at time.Time) *call {
	c := s.calls[id]
	if c == nil {
		c = &call{name: name, first: at}
		s.calls[id] = c
	}
	return c
}

// toolName returns the name of a tool that the session offers. A made-up name is
// content.
func (s *session) toolName(name tools.Name) string {
	if s.offered[name] {
		return string(name)
	}
	return unknownTool
}

// endCall makes the span of a call. The call began with its first record, or
// before it if that waited for the sandbox.
func (s *session) endCall(id string, name tools.Name, at time.Time, latencyMS int64, failure string, attributes ...attribute.KeyValue) {
	c := s.callOf(id, name, at)
	delete(s.calls, id)
	tool := s.toolName(c.name)
	took := time.Duration(latencyMS) * time.Millisecond
	start := c.first
	if began := at.Add(-took); began.Before(start) {
		start = began
	}
	span := s.startSpan(start, "execute_tool "+tool, trace.SpanKindInternal, append(attributes,
		keyOperation.String("execute_tool"), keyTool.String(tool), keyCall.String(id), keyToolType.String("function"),
		keyConversation.String(s.id), attribute.String("caisson.tool.side_effects", string(c.class)))...)
	ctx := trace.ContextWithSpan(s.turnContext(), span)
	for _, a := range c.approvals {
		s.addApproval(ctx, a, at)
	}
	if s.turn != nil && s.turn.sandbox.After(start) && s.turn.sandbox.Before(at) {
		span.AddEvent("caisson.sandbox.started", trace.WithTimestamp(s.turn.sandbox))
	}
	labels := []attribute.KeyValue{keyTool.String(tool), keyToolType.String("function")}
	if failure != "" {
		labels = append(labels, setError(span, failure))
	}
	s.metrics.tool.Record(ctx, took.Seconds(), metric.WithAttributes(labels...))
	s.setArguments(span, id)
	s.endOrHold(held{span: span, end: at, call: id})
}

// addApproval makes the span of a wait for an answer. If none came, it ended
// with the call.
func (s *session) addApproval(ctx context.Context, a approvalWait, end time.Time) {
	if a.end.IsZero() {
		a.end = end
	}
	_, span := s.tracer.Start(ctx, "wait_for_approval", trace.WithTimestamp(a.start), trace.WithAttributes(
		attribute.String("caisson.approval.decision", string(a.resolved.Decision)),
		attribute.String("caisson.approval.scope", string(a.resolved.Scope)), attribute.String("caisson.approval.by", a.resolved.By)))
	span.End(trace.WithTimestamp(a.end))
}

func (s *session) addSandbox(at time.Time, startMS int64, a sandbox.Attestation) {
	if s.turn != nil {
		s.turn.sandbox = at
	}
	span := s.startSpan(at.Add(-time.Duration(startMS)*time.Millisecond), "start_sandbox", trace.SpanKindInternal,
		append(sandboxAttributes(a), keyConversation.String(s.id))...)
	span.End(trace.WithTimestamp(at))
}

func sandboxAttributes(a sandbox.Attestation) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("caisson.sandbox.backend", a.Backend), attribute.String("caisson.sandbox.runtime", a.Runtime),
		attribute.String("container.id", a.Container), attribute.String("caisson.sandbox.image_digest", a.ImageDigest),
		attribute.Int("caisson.sandbox.lost_protections", len(a.Lost)),
	}
}

func (s *session) endExec(r record.Record, p record.UserCommandEnded) {
	start, ok := s.execs[p.ExecID]
	if !ok {
		return
	}
	delete(s.execs, p.ExecID)
	span := s.startSpan(start, "execute_command", trace.SpanKindInternal, keyConversation.String(s.id), attribute.Int("process.exit.code", p.Code))
	switch {
	case p.TimedOut:
		setError(span, "timeout")
	case p.Cancelled:
		setError(span, "cancelled")
	case p.OOMKilled:
		setError(span, "oom_killed")
	case p.Error != "":
		setError(span, "_OTHER") // OpenTelemetry's word for an unknown error type
	}
	span.End(trace.WithTimestamp(r.Time))
}

func (s *session) turnContext() context.Context {
	if s.turn != nil {
		return s.turn.ctx
	}
	return s.parent
}
