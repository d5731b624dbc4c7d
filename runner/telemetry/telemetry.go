// Package telemetry exports the spans, metrics and audit records of sessions by OTLP,
// following the OpenTelemetry conventions for generative AI. They are made from
// records, so that sessions and the loop don't know OpenTelemetry, and have
// nothing that records don't. Nothing is made unless the environment or the
// options ask for it.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/propagation"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/caisson-run/caisson/runner/record"
)

// FlushTime bounds how long the end of a program waits for its collector.
const FlushTime = 2 * time.Second

const scope = "github.com/caisson-run/caisson/runner/telemetry"

// Options are the options of an [Exporter]. The variables of the OpenTelemetry
// specification override the fields.
type Options struct {
	// Getenv returns an environment variable. The SDK itself reads the
	// variables of the resource, the sampler and its bounds from the process's
	// environment.
	Getenv func(name string) string
	// Endpoint is the address of a collector, to which /v1/traces, /v1/metrics
	// and /v1/logs are appended. If it is "", nothing is exported unless the
	// environment names one.
	Endpoint string
	// Headers are sent with each request to Endpoint.
	Headers map[string]string
	// Content also exports messages, arguments, results, and audit records as
	// they are.
	Content bool
	// Version is the program's version.
	Version string
	// NoParent ignores TRACEPARENT in the environment, for a program that
	// serves many users.
	NoParent bool
	// Warn is called once if something could not be exported, with the reason.
	// It is called from any goroutine and must not block.
	Warn func(text string)
}

// Exporter makes spans, metrics and logs from the records of any number of sessions.
// It is safe for concurrent use. The caller must close it. A nil Exporter does
// nothing.
type Exporter struct {
	// content and logContent report that spans and logs have content.
	content, logContent bool

	version string
	parent  context.Context // with the remote parent, if any
	tracer  trace.Tracer
	traces  *sdktrace.TracerProvider // nil if spans are not exported
	meters  *sdkmetric.MeterProvider // nil if metrics are not exported
	logs    *sdklog.LoggerProvider   // nil, as logger, if logs are not exported
	logger  log.Logger
	metrics metrics
	warn    func(err error)

	mu       sync.Mutex
	sessions map[string]*session
}

// Open returns an exporter, or nil if neither the environment nor the options
// ask for one. An error is about the settings.
func Open(ctx context.Context, o Options) (*Exporter, error) {
	traces, metrics, logs, err := o.findSignals()
	if err != nil || traces == nil && metrics == nil && logs == nil {
		return nil, err
	}
	var warned sync.Once
	warn := func(err error) {
		if o.Warn != nil && err != nil {
			warned.Do(func() { o.Warn(err.Error()) })
		}
	}
	// The SDK would print errors of its goroutines otherwise.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(warn))
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "caisson"), attribute.String("service.version", o.Version),
		// A collector must not add up the metrics of two processes.
		attribute.String("service.instance.id", record.NewID("ins")),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the resource: %w", err)
	}
	e := &Exporter{
		content: o.wantsContent(), logContent: o.wantsContent() && !strings.EqualFold(o.Getenv(envContent), "span_only"), version: o.Version, parent: context.Background(), tracer: noop.NewTracerProvider().Tracer(scope), warn: warn,
		sessions: map[string]*session{},
	}
	if !o.NoParent {
		e.parent = propagation.TraceContext{}.Extract(e.parent, propagation.MapCarrier{
			"traceparent": o.Getenv("TRACEPARENT"), "tracestate": o.Getenv("TRACESTATE"),
		})
	}
	if traces != nil {
		exporter := otlptrace.NewUnstarted(&traceClient{traces})
		if err := exporter.Start(ctx); err != nil {
			return nil, err
		}
		e.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
		e.tracer = e.traces.Tracer(scope, trace.WithInstrumentationVersion(o.Version), trace.WithSchemaURL(schemaURL))
	}
	if metrics != nil {
		reader := sdkmetric.NewPeriodicReader(&metricExporter{post: metrics, delta: o.wantsDelta()})
		e.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(res))
	}
	if logs != nil {
		e.logs = sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(&logExporter{logs})), sdklog.WithResource(res))
		e.logger = e.logs.Logger(scope, log.WithInstrumentationVersion(o.Version), log.WithSchemaURL(schemaURL))
	}
	if e.metrics, err = e.newMetrics(); err != nil {
		return nil, err
	}
	return e, nil
}

// Observe takes the next record of a session and its line. It doesn't wait for the
// collector.
func (e *Exporter) Observe(r record.Record, line []byte) {
	if e == nil {
		return
	}
	e.mu.Lock()
	s := e.sessions[r.Session]
	if s == nil {
		s = newSession(e, r.Session)
		e.sessions[r.Session] = s
	}
	if r.Kind == record.KindSessionEnded {
		delete(e.sessions, r.Session)
	}
	e.mu.Unlock()
	s.observeRecord(r, line)
}

// Close ends the spans of live sessions, and sends the rest within [FlushTime].
func (e *Exporter) Close(ctx context.Context) {
	if e == nil {
		return
	}
	e.mu.Lock()
	live := maps.Clone(e.sessions)
	clear(e.sessions)
	e.mu.Unlock()
	for _, s := range live {
		s.abandonSpans(time.Now())
	}
	slow := fmt.Errorf("the collector took none of it within %s", FlushTime)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), FlushTime, slow)
	defer cancel()
	var flushes sync.WaitGroup
	flush := func(shutdown func(context.Context) error) {
		flushes.Go(func() {
			err := shutdown(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				err = slow
			}
			e.warn(err)
		})
	}
	if e.traces != nil {
		flush(e.traces.Shutdown)
	}
	if e.meters != nil {
		flush(e.meters.Shutdown)
	}
	if e.logs != nil {
		flush(e.logs.Shutdown)
	}
	flushes.Wait()
}

// wantsContent reports whether messages, arguments and results are exported.
// The words are the ones of OpenTelemetry's own instrumentations.
func (o Options) wantsContent() bool {
	switch strings.ToLower(o.Getenv(envContent)) {
	case "true", "span_only", "span_and_event":
		return true
	case "":
		return o.Content
	}
	return false
}

// wantsDelta reports whether counts are sent since the last time, not since the
// start.
func (o Options) wantsDelta() bool {
	switch strings.ToLower(o.Getenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")) {
	case "delta", "lowmemory":
		return true
	}
	return false
}
