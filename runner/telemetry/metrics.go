package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
)

// metrics are the instruments: version 1.41 of the conventions', and four from
// the version after it, which have no predecessor.
type metrics struct {
	operation, firstChunk, agent, tool, tokens, modelCalls, toolCalls metric.Float64Histogram
}

// The conventions' bucket bounds, except callBounds, which is ours.
var (
	secondBounds = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	tokenBounds  = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
	callBounds   = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}
)

func (e *Exporter) newMetrics() (metrics, error) {
	var provider metric.MeterProvider = noop.NewMeterProvider()
	if e.meters != nil {
		provider = e.meters
	}
	meter := provider.Meter(scope, metric.WithInstrumentationVersion(e.version), metric.WithSchemaURL(schemaURL))
	var errs []error
	histogram := func(name, unit, description string, bounds []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	m := metrics{
		operation:  histogram("gen_ai.client.operation.duration", "s", "GenAI operation duration.", secondBounds),
		firstChunk: histogram("gen_ai.client.operation.time_to_first_chunk", "s", "Time from the request to the first chunk of its answer.", secondBounds),
		agent:      histogram("gen_ai.invoke_agent.duration", "s", "Duration of an agent's invocation.", secondBounds),
		tool:       histogram("gen_ai.execute_tool.duration", "s", "Duration of a tool's execution.", secondBounds),
		tokens:     histogram("gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", tokenBounds),
		modelCalls: histogram("gen_ai.invoke_agent.inference_calls", "{call}", "Calls of models in an agent's invocation.", callBounds),
		toolCalls:  histogram("gen_ai.invoke_agent.tool_calls", "{call}", "Calls of tools in an agent's invocation.", callBounds),
	}
	return m, errors.Join(errs...)
}

// metricExporter sends metrics. It supports only histograms.
type metricExporter struct {
	post  *endpoint
	delta bool
}

func (e *metricExporter) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	if e.delta {
		return metricdata.DeltaTemporality
	}
	return metricdata.CumulativeTemporality
}

func (*metricExporter) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (*metricExporter) ForceFlush(context.Context) error { return nil }

func (*metricExporter) Shutdown(context.Context) error { return nil }

func (e *metricExporter) Export(ctx context.Context, rm *metricdata.ResourceMetrics) error {
	out := &metricspb.ResourceMetrics{SchemaUrl: rm.Resource.SchemaURL(), Resource: &resourcepb.Resource{Attributes: keyValues(rm.Resource.Set())}}
	for _, sm := range rm.ScopeMetrics {
		scoped := &metricspb.ScopeMetrics{SchemaUrl: sm.Scope.SchemaURL, Scope: &commonpb.InstrumentationScope{Name: sm.Scope.Name, Version: sm.Scope.Version}}
		for _, m := range sm.Metrics {
			if h := toHistogram(m.Data); h != nil {
				scoped.Metrics = append(scoped.Metrics, &metricspb.Metric{
					Name: m.Name, Unit: m.Unit, Description: m.Description, Data: &metricspb.Metric_Histogram{Histogram: h},
				})
			}
		}
		out.ScopeMetrics = append(out.ScopeMetrics, scoped)
	}
	if len(out.ScopeMetrics) == 0 {
		return nil
	}
	return e.post.postMessage(ctx, &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{out}})
}

// toHistogram returns a histogram for the wire, nil for any other aggregation.
func toHistogram(data metricdata.Aggregation) *metricspb.Histogram {
	h, ok := data.(metricdata.Histogram[float64])
	if !ok {
		return nil
	}
	return &metricspb.Histogram{AggregationTemporality: toTemporality(h.Temporality), DataPoints: toPoints(h.DataPoints)}
}

func toTemporality(t metricdata.Temporality) metricspb.AggregationTemporality {
	if t == metricdata.DeltaTemporality {
		return metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA
	}
	return metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
}

// toPoints returns the points without exemplars.
func toPoints(in []metricdata.HistogramDataPoint[float64]) []*metricspb.HistogramDataPoint {
	var out []*metricspb.HistogramDataPoint
	for _, p := range in {
		q := &metricspb.HistogramDataPoint{
			Attributes: keyValues(&p.Attributes), StartTimeUnixNano: unixNano(p.StartTime), TimeUnixNano: unixNano(p.Time),
			Count: p.Count, Sum: &p.Sum, ExplicitBounds: p.Bounds, BucketCounts: p.BucketCounts,
		}
		if v, ok := p.Min.Value(); ok {
			q.Min = &v
		}
		if v, ok := p.Max.Value(); ok {
			q.Max = &v
		}
		out = append(out, q)
	}
	return out
}

func unixNano(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

func keyValues(set *attribute.Set) []*commonpb.KeyValue {
	var out []*commonpb.KeyValue
	for it := set.Iter(); it.Next(); {
		kv := it.Attribute()
		out = append(out, &commonpb.KeyValue{Key: string(kv.Key), Value: toAnyValue(kv.Value)})
	}
	return out
}

// toAnyValue returns a value for the wire. Metrics, logs and the resource have
// strings, integers and booleans.
func toAnyValue(v attribute.Value) *commonpb.AnyValue {
	switch v.Type() {
	case attribute.INT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.BOOL:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v.String()}}
}
