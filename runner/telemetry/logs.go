package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/approval"
)

// emitLog exports an audit record as a log record, within the turn's span. line
// is the record's line. Its hash shows later whether the trace was changed.
func (s *session) emitLog(r record.Record, p record.Payload, line []byte) {
	if s.logger == nil || !record.IsAudited(r.Kind) {
		return
	}
	severity := severityOf(p)
	sum := sha256.Sum256(line)
	var out log.Record
	out.SetEventName(eventName(r.Kind))
	out.SetTimestamp(r.Time)
	out.SetObservedTimestamp(time.Now())
	out.SetSeverity(severity)
	out.SetSeverityText(severity.String())
	attributes := append([]attribute.KeyValue{
		keyConversation.String(s.id), attribute.String("caisson.record.id", r.ID), attribute.Int64("caisson.record.seq", r.Seq),
		attribute.String("caisson.record.sha256", hex.EncodeToString(sum[:])), attribute.String("caisson.actor", string(r.Actor)),
	}, s.eventAttributes(p)...)
	if r.Turn != "" {
		attributes = append(attributes, attribute.String("caisson.turn.id", r.Turn))
	}
	out.AddAttributes(attributes...)
	if s.logContent {
		out.SetBody(attribute.StringValue(string(r.Payload)))
	}
	s.logger.Emit(s.turnContext(), out)
}

// severityOf returns error for a lost sandbox, a failed session or leftovers, and
// warn for refusals and what a person should check.
func severityOf(p record.Payload) log.Severity {
	warnIf := func(is bool) log.Severity {
		if is {
			return log.SeverityWarn
		}
		return log.SeverityInfo
	}
	switch p := p.(type) {
	case record.SandboxLost:
		return log.SeverityError
	case record.SessionEnded:
		if p.Problem != nil || len(p.Left) > 0 {
			return log.SeverityError
		}
		return warnIf(p.ExitStatus != 0 || len(p.HostExecuted) > 0 || len(p.Quarantined) > 0 || len(p.Cleared) > 0)
	case record.SandboxStarted:
		return warnIf(len(p.Attestation.Lost) > 0)
	case record.SandboxRestarted:
		return log.SeverityWarn
	case record.ConfirmationRequested:
		return warnIf(p.Dangerous != "")
	case record.ConfirmationResolved:
		return warnIf(p.Decision != approval.DecisionAllow)
	case record.ConfirmationAttempted, record.NetworkDenied, record.MCPServerFailed, record.MCPToolsChanged, record.MCPRequestRefused:
		return log.SeverityWarn
	}
	return log.SeverityInfo
}

// eventAttributes returns what events of a turn and logs say of a record: names,
// numbers and words of Caisson, no content.
func (s *session) eventAttributes(p record.Payload) []attribute.KeyValue {
	switch p := p.(type) {
	case record.SessionCreated:
		return append(createdAttributes(p), attribute.String("caisson.client", p.Client))
	case record.SessionResumed:
		return append(createdAttributes(p.SessionCreated), attribute.String("caisson.client", p.Client))
	case record.SessionEnded:
		return []attribute.KeyValue{
			attribute.String("caisson.stop_reason", string(p.Reason)), attribute.Int("caisson.exit_status", p.ExitStatus),
			attribute.Int("caisson.changed_files", p.ChangedCount.Files), attribute.Int("caisson.denied", len(p.Denials)),
			attribute.Int("caisson.host_executed", len(p.HostExecuted)+p.HostExecutedOmitted), attribute.Int("caisson.left", len(p.Left)),
		}
	case record.SandboxStarted:
		return sandboxAttributes(p.Attestation)
	case record.SandboxRestarted:
		return sandboxAttributes(p.Attestation)
	case record.UserCommandStarted:
		return []attribute.KeyValue{attribute.String("caisson.exec.id", p.ExecID), attribute.String("caisson.client", p.Client)}
	case record.UserCommandEnded:
		return []attribute.KeyValue{attribute.String("caisson.exec.id", p.ExecID), attribute.Int64("caisson.wall_ms", p.WallMS)}
	case record.ConfirmationRequested:
		return []attribute.KeyValue{keyTool.String(s.toolName(p.Name)), keyCall.String(p.CallID), attribute.String("caisson.tool.class", string(p.Class)), attribute.Bool("caisson.dangerous", p.Dangerous != "")}
	case record.ConfirmationResolved:
		return []attribute.KeyValue{
			keyCall.String(p.CallID), attribute.String("caisson.approval.decision", string(p.Decision)),
			attribute.String("caisson.approval.scope", string(p.Scope)), attribute.String("caisson.approval.by", p.By), attribute.String("caisson.client", p.Client),
		}
	case record.ConfirmationAttempted:
		return []attribute.KeyValue{
			keyCall.String(p.CallID), attribute.String("caisson.approval.decision", string(p.Decision)),
			attribute.String("caisson.approval.outcome", string(p.Outcome)), attribute.String("caisson.client", p.By),
		}
	case record.WorkerToolCall:
		return []attribute.KeyValue{attribute.String("caisson.worker.call_status", p.Status)}
	case record.BudgetWarning:
		return []attribute.KeyValue{attribute.String("caisson.limit.kind", string(p.What))}
	case record.NetworkOpened:
		return []attribute.KeyValue{keyServer.String(p.Host), attribute.Int64("caisson.network.connection", p.Conn), attribute.String("caisson.network.by", p.By)}
	case record.NetworkClosed:
		return []attribute.KeyValue{keyServer.String(p.Host), attribute.Int64("caisson.network.sent", p.Sent), attribute.Int64("caisson.network.received", p.Received)}
	case record.NetworkDenied:
		return []attribute.KeyValue{keyServer.String(p.Host), attribute.String("caisson.network.reason", p.Reason)}
	case record.MCPServerStarted:
		return []attribute.KeyValue{attribute.String("caisson.mcp.server", p.Server), attribute.Int("caisson.mcp.tools", p.ToolCount), attribute.Int64("caisson.mcp.start_ms", p.WallMS)}
	case record.MCPServerFailed:
		return []attribute.KeyValue{attribute.String("caisson.mcp.server", p.Server)}
	case record.MCPServerStopped:
		return []attribute.KeyValue{attribute.String("caisson.mcp.server", p.Server)}
	case record.MCPToolsChanged:
		return []attribute.KeyValue{attribute.String("caisson.mcp.server", p.Server)}
	case record.MCPRequestRefused:
		return []attribute.KeyValue{attribute.String("caisson.mcp.server", p.Server), attribute.String("mcp.method.name", p.Method)}
	}
	return nil
}

func createdAttributes(p record.SessionCreated) []attribute.KeyValue {
	return []attribute.KeyValue{
		keyProvider.String(providerName(p.Model.Provider)), keyRequestModel.String(p.Model.Model), attribute.String("caisson.policy", p.Policy),
		attribute.String("caisson.workspace_mode", p.WorkspaceMode), attribute.String("caisson.image", imageName(p.Image)),
	}
}

// imageName leaves out the path of an image that is in a file or directory, and
// what is no reference.
func imageName(image string) string {
	r, err := images.ParseReference(image)
	switch {
	case err != nil:
		return unknownTool
	case r.Scheme == images.SchemeHost, r.Scheme == images.SchemeName:
		return image
	}
	return string(r.Scheme)
}

// logExporter sends log records.
type logExporter struct{ post *endpoint }

// Shutdown implements sdklog.Exporter.
func (*logExporter) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdklog.Exporter.
func (*logExporter) ForceFlush(context.Context) error { return nil }

// Export implements sdklog.Exporter. All records are of one resource and scope.
func (e *logExporter) Export(ctx context.Context, records []sdklog.Record) error {
	if len(records) == 0 {
		return nil
	}
	scope := records[0].InstrumentationScope()
	scoped := &logspb.ScopeLogs{SchemaUrl: scope.SchemaURL, Scope: &commonpb.InstrumentationScope{Name: scope.Name, Version: scope.Version}}
	for _, r := range records {
		scoped.LogRecords = append(scoped.LogRecords, toLogRecord(r))
	}
	resource := records[0].Resource()
	return e.post.postMessage(ctx, &logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{
		SchemaUrl: resource.SchemaURL(), Resource: &resourcepb.Resource{Attributes: keyValues(resource.Set())}, ScopeLogs: []*logspb.ScopeLogs{scoped},
	}}})
}

func toLogRecord(r sdklog.Record) *logspb.LogRecord {
	out := &logspb.LogRecord{
		TimeUnixNano: unixNano(r.Timestamp()), ObservedTimeUnixNano: unixNano(r.ObservedTimestamp()), EventName: r.EventName(),
		SeverityNumber: logspb.SeverityNumber(r.Severity()), SeverityText: r.SeverityText(), Flags: uint32(r.TraceFlags()),
	}
	if r.Body().Type() == attribute.STRING {
		out.Body = toAnyValue(r.Body())
	}
	if id := r.TraceID(); id.IsValid() {
		span := r.SpanID()
		out.TraceId, out.SpanId = id[:], span[:]
	}
	r.WalkAttributes(func(kv attribute.KeyValue) bool {
		out.Attributes = append(out.Attributes, &commonpb.KeyValue{Key: string(kv.Key), Value: toAnyValue(kv.Value)})
		return true
	})
	return out
}
