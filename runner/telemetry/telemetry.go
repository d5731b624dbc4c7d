// Package telemetry exports the spans and metrics of sessions by OTLP, as the OpenTelemetry
// conventions for generative AI have them. They are made from records, so that sessions
// and the loop don't know OpenTelemetry, and hold nothing that the records don't. Nothing
// is made unless the environment or the options ask for it.
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
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/caisson-run/caisson/runner/record"
)

// FlushTime bounds how long the end of a program waits for its collector.
const FlushTime = 2 * time.Second

// scope names the instrumentation.
const scope = "github.com/caisson-run/caisson/runner/telemetry"

// Options configures an [Exporter]. The variables of the OpenTelemetry specification win
// over the fields.
type Options struct {
	// Getenv returns a variable of the environment. The SDK itself reads those of the
	// resource, the sampler and its bounds from the environment of the process.
	Getenv func(name string) string
	// Endpoint is the address of a collector, to which /v1/traces and /v1/metrics are
	// appended; "" exports nothing unless the environment names one.
	Endpoint string
	// Headers are sent with each request to Endpoint.
	Headers map[string]string
	// Content exports messages, arguments and results too.
	Content bool
	// Version is the program's.
	Version string
	// NoParent ignores the TRACEPARENT of the environment: for a program that serves
	// many users.
	NoParent bool
	// Warn receives, once, why something could not be exported. It is called from any
	// goroutine and must return at once.
	Warn func(text string)
}

// Exporter makes spans and metrics of the records of any number of sessions. It is safe
// for concurrent use. Its caller must close it. The nil Exporter does nothing.
type Exporter struct {
	content bool
	version string
	parent  context.Context // with the remote parent, if there is one
	tracer  trace.Tracer
	traces  *sdktrace.TracerProvider // nil if spans are not exported
	meters  *sdkmetric.MeterProvider // nil if metrics are not exported
	metrics metrics
	warn    func(err error)

	mu       sync.Mutex
	sessions map[string]*session
}

// Open returns an exporter, or nil if neither the environment nor the options ask for
// one. An error is one of the settings.
func Open(ctx context.Context, o Options) (*Exporter, error) {
	traces, metrics, err := o.findSignals()
	if err != nil || traces == nil && metrics == nil {
		return nil, err
	}
	var warned sync.Once
	warn := func(err error) {
		if o.Warn != nil && err != nil {
			warned.Do(func() { o.Warn(err.Error()) })
		}
	}
	// The SDK hands what its goroutines run into to this handler, which prints it
	// otherwise.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(warn))
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "caisson"), attribute.String("service.version", o.Version),
		// Streams of metrics of two processes are two: a collector must not add one to the other.
		attribute.String("service.instance.id", record.NewID("ins")),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the resource: %w", err)
	}
	e := &Exporter{
		content: o.wantsContent(), version: o.Version, parent: context.Background(), tracer: noop.NewTracerProvider().Tracer(scope), warn: warn,
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
	if e.metrics, err = e.newMetrics(o.Version); err != nil {
		return nil, err
	}
	return e, nil
}

// Observe takes a record of a session, in the session's order. It doesn't wait for the
// collector.
func (e *Exporter) Observe(r record.Record, _ []byte) {
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
	s.observeRecord(r)
}

// Close ends the spans of sessions that are live, and sends what is left within
// [FlushTime].
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
	flushes.Wait()
}

// wantsContent reports whether messages, arguments and results are exported. The words
// are those of OpenTelemetry's own instrumentations.
func (o Options) wantsContent() bool {
	switch strings.ToLower(o.Getenv(envContent)) {
	case "true", "span_only", "span_and_event":
		return true
	case "":
		return o.Content
	}
	return false
}

// wantsDelta reports whether counts are sent since the last time, not since the start.
func (o Options) wantsDelta() bool {
	switch strings.ToLower(o.Getenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")) {
	case "delta", "lowmemory":
		return true
	}
	return false
}
