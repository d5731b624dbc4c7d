package server

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
)

// diagnostics is the log and the metrics, which all parts of a server share.
type diagnostics struct {
	log *zap.Logger
	// strays logs answers to no live session, and requests that lack a role. It
	// is bounded.
	strays  *zap.Logger
	metrics *metrics
}

// At most strayMost entries of diagnostics.strays are logged per strayEvery, so
// that a client that guesses IDs can't fill the log.
const (
	strayEvery = time.Minute
	strayMost  = 100
)

func newDiagnostics(log *zap.Logger) *diagnostics {
	if log == nil {
		log = zap.NewNop()
	}
	strays := log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, strayEvery, strayMost, 0)
	}))
	return &diagnostics{log: log, strays: strays, metrics: newMetrics()}
}

// writeBytes writes a response. The client may be gone.
func (d *diagnostics) writeBytes(w io.Writer, text []byte) {
	if _, err := w.Write(text); err != nil {
		d.log.Debug("write answer", zap.Error(err))
	}
}

var errStopping = errors.New("the server stops")

// metrics are the server's metrics, in a separate registry. Labels come from
// small sets, never from IDs, paths or names chosen by a client.
type metrics struct {
	registry *prometheus.Registry

	started      prometheus.Counter
	ended        *prometheus.CounterVec // reason
	turns        *prometheus.CounterVec // reason
	turnTime     prometheus.Histogram
	calls        *prometheus.CounterVec // class, outcome
	callTime     *prometheus.HistogramVec
	asked        prometheus.Counter
	answers      *prometheus.CounterVec // decision, by
	late         prometheus.Counter
	network      *prometheus.CounterVec // event
	tokens       *prometheus.CounterVec // direction
	streams      prometheus.Gauge
	dropped      prometheus.Counter
	unauthorized prometheus.Counter
	forbidden    prometheus.Counter
	requests     *prometheus.CounterVec // route, method, status
	requestTime  *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "caisson_" + name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "caisson_" + name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	times := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "caisson_" + name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	// Commands take from milliseconds to their limit of minutes, turns to hours.
	long := []float64{.01, .05, .25, 1, 5, 15, 60, 300, 900, 3600}
	m.started = counter("sessions_started_total", "Sessions that were started.")
	m.ended = counters("sessions_ended_total", "Sessions that have ended.", "reason")
	m.turns = counters("turns_total", "Turns that have ended.", "reason")
	m.turnTime = times("turn_seconds", "Wall time of turns.", long).WithLabelValues().(prometheus.Histogram)
	m.calls = counters("tool_calls_total", "Tool calls that have ended.", "class", "outcome")
	m.callTime = times("tool_call_seconds", "Latency of tool calls.", long, "class")
	m.asked = counter("confirmations_requested_total", "Confirmations that were asked for.")
	m.answers = counters("confirmations_resolved_total", "Confirmations that were resolved.", "decision", "by")
	m.late = counter("confirmation_attempts_total", "Answers that changed nothing.")
	m.network = counters("network_records_total", "Recorded connections of commands and of the fetch tool: opened, closed, denied.", "event")
	m.tokens = counters("model_tokens_total", "Tokens of model calls.", "direction")
	m.streams = prometheus.NewGauge(prometheus.GaugeOpts{Name: "caisson_event_streams", Help: "Open streams of events, commands, files and terminals."})
	m.dropped = counter("event_streams_dropped_total", "Streams of events and terminals that were ended because their client was too slow.")
	m.forbidden = counter("http_forbidden_total", "Requests that the roles of their token do not allow.")
	m.unauthorized = counter("http_unauthorized_total", "Requests without a token that is known.")
	m.requests = counters("http_requests_total", "HTTP requests.", "route", "method", "status")
	m.requestTime = times("http_request_seconds", "Time of HTTP requests, streams included.", []float64{.001, .005, .025, .1, .5, 2.5, 10, 60}, "route")
	m.registry.MustRegister(m.streams, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// collectStates adds the number of live sessions by state.
func (m *metrics) collectStates(count func() map[State]int) {
	for _, state := range []State{StateIdle, StateRunning, StateClosing} {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "caisson_sessions", Help: "Live sessions.", ConstLabels: prometheus.Labels{"state": string(state)},
		}, func() float64 { return float64(count()[state]) }))
	}
}

func (m *metrics) countRequest(r *http.Request, status int, took time.Duration) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	m.requests.WithLabelValues(route, methodName(r), strconv.Itoa(status)).Inc()
	m.requestTime.WithLabelValues(route).Observe(took.Seconds())
}

// methodName returns a request's method if it is a standard one.
func methodName(r *http.Request) string {
	known := []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}
	if slices.Contains(known, r.Method) {
		return r.Method
	}
	return "other"
}

func (m *metrics) countRecord(kind record.Kind, s trace.Step) {
	switch {
	case kind == record.KindConfirmationRequested:
		m.asked.Inc()
	case kind == record.KindConfirmationAttempted:
		m.late.Inc()
	case slices.Contains([]record.Kind{record.KindNetworkOpened, record.KindNetworkClosed, record.KindNetworkDenied}, kind):
		m.network.WithLabelValues(strings.TrimPrefix(string(kind), "network.")).Inc()
	case kind == record.KindConfirmationResolved && s.Call != nil:
		q := s.Call.Asked[len(s.Call.Asked)-1]
		m.answers.WithLabelValues(string(q.Decision), q.By).Inc()
	case (kind == record.KindModelCallCompleted || kind == record.KindWorkerModelCall || kind == record.KindBridgeModelCall) && s.Model != nil:
		u := s.Model.Usage
		m.tokens.WithLabelValues("input").Add(float64(max(0, u.InputTokens+u.CachedInputTokens+u.CacheWriteTokens)))
		m.tokens.WithLabelValues("output").Add(float64(max(0, u.OutputTokens)))
	case s.End != nil:
		m.turns.WithLabelValues(string(s.End.Reason)).Inc()
		m.turnTime.Observe(float64(s.End.WallMS) / 1000)
	case s.Call != nil && (kind == record.KindToolCompleted || kind == record.KindToolFailed || kind == record.KindToolInputInvalid):
		m.countCall(*s.Call)
	}
}

// countCall counts a call that has ended. Its class is "unknown" if it never
// ran.
func (m *metrics) countCall(c trace.Call) {
	class, outcome := string(c.Class), c.ErrorClass
	switch c.Status {
	case trace.CallDone:
		outcome = "success"
	case trace.CallUnsuccess:
		outcome = "failure"
	}
	if c.Started.IsZero() {
		m.calls.WithLabelValues("unknown", outcome).Inc()
		return
	}
	m.calls.WithLabelValues(class, outcome).Inc()
	m.callTime.WithLabelValues(class).Observe(float64(c.LatencyMS) / 1000)
}
