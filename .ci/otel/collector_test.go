// Package otel receives the telemetry of the built program with the receiver of an
// OpenTelemetry collector, and holds it against the semantic conventions.
package otel

import (
	"context"
	"net"
	"sync"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

// received is what a collector received.
type received struct {
	mu       sync.Mutex
	spans    []ptrace.Span
	resource map[string]any
	metrics  map[string]pmetric.Metric
	logs     []plog.LogRecord
}

// startCollector starts the OTLP receiver of the OpenTelemetry collector.
func startCollector(t *testing.T) (endpoint string, r *received) {
	t.Helper()
	r = &received{metrics: map[string]pmetric.Metric{}}
	traces, err := consumer.NewTraces(func(_ context.Context, td ptrace.Traces) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rs := range td.ResourceSpans().All() {
			r.resource = rs.Resource().Attributes().AsRaw()
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					span := ptrace.NewSpan()
					s.CopyTo(span)
					r.spans = append(r.spans, span)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					metric := pmetric.NewMetric()
					m.CopyTo(metric)
					r.metrics[m.Name()] = metric
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	logs, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, l := range sl.LogRecords().All() {
					line := plog.NewLogRecord()
					l.CopyTo(line)
					r.logs = append(r.logs, line)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	factory := otlpreceiver.NewFactory()
	conf := factory.CreateDefaultConfig()
	endpoint = freeAddress(t)
	err = confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": endpoint}}}).Unmarshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	set := receivertest.NewNopSettings(factory.Type())
	inTraces, err := factory.CreateTraces(t.Context(), set, conf, traces)
	if err != nil {
		t.Fatal(err)
	}
	inMetrics, err := factory.CreateMetrics(t.Context(), set, conf, metrics)
	if err != nil {
		t.Fatal(err)
	}
	inLogs, err := factory.CreateLogs(t.Context(), set, conf, logs)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []component.Component{inTraces, inMetrics, inLogs} {
		if err := c.Start(context.Background(), componenttest.NewNopHost()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return "http://" + endpoint, r
}

// freeAddress returns an address of this machine that nothing listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the receiver listens there next
	return l.Addr().String()
}
