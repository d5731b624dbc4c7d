package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/log"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// collector keeps the spans that it receives, and answers with status.
type collector struct {
	*httptest.Server

	status func(n int) int
	mu     sync.Mutex
	spans  map[string]*tracepb.Span
	asked  atomic.Int32
}

func newCollector(t *testing.T, status func(n int) int) *collector {
	t.Helper()
	c := &collector{status: status, spans: map[string]*tracepb.Span{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			return // metrics
		}
		n := c.status(int(c.asked.Add(1)))
		if n == http.StatusOK {
			c.keep(t, body)
		}
		w.Header().Set("Location", "/v1/other")
		w.WriteHeader(n)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) keep(t *testing.T, body []byte) {
	var data tracepb.TracesData
	if err := proto.Unmarshal(body, &data); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range data.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans[s.Name] = s
			}
		}
	}
}

func accept(int) int { return http.StatusOK }

func open(t *testing.T, env map[string]string) (e *Exporter, warnings func() []string) {
	t.Helper()
	var mu sync.Mutex
	var list []string
	e, err := Open(t.Context(), Options{Getenv: func(name string) string { return env[name] }, Version: "test", Warn: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, text)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return e, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// observe gives an exporter the records of one session, a second apart, with
// their numbers as IDs.
func observe(t *testing.T, e *Exporter, payloads map[int]record.Payload, parents map[int]string) {
	t.Helper()
	begin := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	for n := range len(payloads) {
		p := payloads[n]
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		e.Observe(record.Record{
			ID: string(rune('a' + n)), Session: "ses_1", Turn: "trn_1", Parent: parents[n], Kind: p.Kind(), Payload: raw, Time: begin.Add(time.Duration(n) * time.Second),
		}, nil)
	}
}

// aTurn is a turn that is cancelled while a call and a model call are under
// way.
func aTurn() (map[int]record.Payload, map[int]string) {
	model := loop.ModelInfo{Provider: "openai", Model: "gpt", BaseURL: "https://api.example:8443/v1"}
	return map[int]record.Payload{
		0: record.SessionCreated{Model: model, Tools: []record.OfferedTool{{Name: tools.Name("shell")}}},
		1: record.TurnStarted{},
		2: record.ModelCallStarted{ModelCall: loop.ModelCall{Round: 1, Profile: "p", Attempt: 1, Model: model}},
		3: record.ModelCallCompleted{ModelCall: loop.ModelCall{Model: model}, FirstDeltaMS: new(int64(250)), Finish: "tool_calls", Usage: limits.Usage{InputTokens: 5, CachedInputTokens: 7, OutputTokens: 3}},
		4: record.ConfirmationRequested{CallID: "tu_1", Name: "shell"},
		5: record.ModelCallStarted{ModelCall: loop.ModelCall{Round: 2, Profile: "p", Attempt: 1, Model: model}},
		6: record.ModelCallFailed{ModelCall: loop.ModelCall{Model: model}, Class: "rate_limited", Status: 429, Message: "secret words"},
		7: record.TurnCancelled{Reason: "interrupted"},
	}, map[int]string{3: "c", 6: "f"}
}

func TestSpansOfACancelledTurn(t *testing.T) {
	c := newCollector(t, accept)
	e, warnings := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"})
	observe1, parents := aTurn()
	observe(t, e, observe1, parents)
	e.Close(t.Context())
	if list := warnings(); len(list) > 0 {
		t.Errorf("warnings: %q", list)
	}
	for name, want := range map[string]string{
		"invoke_agent caisson": "cancelled", "chat gpt": "rate_limited", "execute_tool shell": "cancelled", "wait_for_approval": "",
	} {
		s := c.spans[name]
		if s == nil {
			t.Errorf("no span %s", name)
			continue
		}
		if got := attributeOf(s, "error.type"); got != want {
			t.Errorf("%s: error.type %q, want %q", name, got, want)
		}
		if strings.Contains(s.String(), "secret words") {
			t.Errorf("%s has the text of the error", name)
		}
	}
	call := c.spans["execute_tool shell"]
	if d := call.EndTimeUnixNano - call.StartTimeUnixNano; d != uint64(3*time.Second) {
		t.Errorf("the call took %s, want the time of its wait: 3 s", time.Duration(d))
	}
	if got := attributeOf(c.spans["chat gpt"], "server.address"); got != "api.example" {
		t.Errorf("server.address %q", got)
	}
}

func attributeOf(s *tracepb.Span, key string) string {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value.GetStringValue()
		}
	}
	return ""
}

func TestOff(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"nothing":  {},
		"disabled": {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"none":     {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
	} {
		before := runtime.NumGoroutine()
		e, err := Open(t.Context(), Options{Getenv: func(name string) string { return env[name] }})
		if e != nil || err != nil {
			t.Errorf("%s: %v, %v", name, e, err)
		}
		if n := runtime.NumGoroutine(); n > before { // those of other tests may end meanwhile
			t.Errorf("%s: %d goroutines more", name, n-before)
		}
		if n := testing.AllocsPerRun(100, func() { e.Observe(record.Record{Session: "ses_1", Kind: record.KindTurnStarted}, nil) }); n != 0 {
			t.Errorf("%s: a record costs %.0f allocations", name, n)
		}
		e.Close(t.Context())
	}
}

func TestEndpoints(t *testing.T) {
	for _, c := range []struct {
		name                  string
		env                   map[string]string
		traces, metrics, logs string // "" is nowhere
		err                   string
	}{
		{"one for all", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, "http://h:4318/v1/traces", "http://h:4318/v1/metrics", "http://h:4318/v1/logs", ""},
		{"with a path", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://h/otlp/"}, "https://h/otlp/v1/traces", "https://h/otlp/v1/metrics", "https://h/otlp/v1/logs", ""},
		{"of one signal", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:1/x"}, "http://h:1/x", "", "", ""},
		{"of one signal without a path", map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h:1"}, "", "http://h:1/", "", ""},
		{"of logs", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs:1/x", "OTEL_TRACES_EXPORTER": "none"}, "", "http://h/v1/metrics", "http://logs:1/x", ""},
		{"by exporter", map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces", "", "", ""},
		{"no metrics", map[string]string{"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, "http://h/v1/traces", "", "http://h/v1/logs", ""},
		{"grpc", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317"}, "", "", "", "OTEL_EXPORTER_OTLP_PROTOCOL: unsupported protocol"},
		{"no address", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "h:4318"}, "", "", "", "OTEL_EXPORTER_OTLP_ENDPOINT: not an http or https address"},
		{"unknown exporter", map[string]string{"OTEL_TRACES_EXPORTER": "jaeger"}, "", "", "", `OTEL_TRACES_EXPORTER: unknown exporter "jaeger"`},
		{"headers", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_HEADERS": "a b=secret"}, "", "", "", "OTEL_EXPORTER_OTLP_HEADERS: invalid headers"},
		{"a header of two lines", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_HEADERS": "a=b%0Ac"}, "", "", "", "OTEL_EXPORTER_OTLP_HEADERS: invalid headers"},
		{"timeout", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "", "", "", "OTEL_EXPORTER_OTLP_TIMEOUT: invalid time"},
		{"certificate", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://h", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/nonexistent"}, "", "", "", "OTEL_EXPORTER_OTLP_CERTIFICATE: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			traces, metrics, logs, err := Options{Getenv: func(name string) string { return c.env[name] }}.findSignals()
			if err != nil || c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			var got []string
			for _, e := range []*endpoint{traces, metrics, logs} {
				if e == nil {
					got = append(got, "")
				} else {
					got = append(got, e.url.String())
				}
			}
			if want := []string{c.traces, c.metrics, c.logs}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestSecrets names the parts of headers that no record may have.
func TestSecrets(t *testing.T) {
	o := Options{Headers: map[string]string{"X-Key": "k-1234567"}, Getenv: func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20t-89,x=1"}[name]
	}}
	var all []string
	for _, values := range o.Secrets() {
		all = append(all, values...)
	}
	for _, want := range []string{"k-1234567", "Bearer%20t-89", "Bearer t-89", "t-89"} {
		found := false
		for _, s := range all {
			found = found || s == want
		}
		if !found {
			t.Errorf("%q is not among %q", want, all)
		}
	}
}

// A dead collector causes one warning, and holds nothing up.
func TestDeadCollector(t *testing.T) {
	for name, status := range map[string]int{"refused": http.StatusForbidden, "a redirect": http.StatusTemporaryRedirect} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t, func(int) int { return status })
			e, warnings := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_METRICS_EXPORTER": "none"})
			payloads, parents := aTurn()
			observe(t, e, payloads, parents)
			e.Close(t.Context())
			if list := warnings(); len(list) != 1 || !strings.Contains(list[0], http.StatusText(status)) {
				t.Errorf("warnings: %q", list)
			}
			if n := c.asked.Load(); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// TestHangingCollector closes while a collector doesn't answer until the test
// has ended, so that only [FlushTime] can end the wait.
func TestHangingCollector(t *testing.T) {
	release := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hanging.Close()
	defer close(release)
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "600000")
	t.Setenv("OTEL_METRIC_EXPORT_TIMEOUT", "600000")
	e, warnings := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": hanging.URL, "OTEL_EXPORTER_OTLP_TIMEOUT": "600000"})
	payloads, parents := aTurn()
	observe(t, e, payloads, parents)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // an interrupted run sends what it has all the same
	e.Close(ctx)
	if list := warnings(); len(list) != 1 || !strings.Contains(list[0], "within 2s") {
		t.Errorf("warnings: %q", list)
	}
}

// A request is repeated if the collector is too busy.
func TestRetry(t *testing.T) {
	c := newCollector(t, func(n int) int {
		if n == 1 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	e, warnings := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_METRICS_EXPORTER": "none"})
	payloads, parents := aTurn()
	observe(t, e, payloads, parents)
	if err := e.traces.ForceFlush(t.Context()); err != nil {
		t.Error(err)
	}
	e.Close(t.Context())
	if list := warnings(); len(list) > 0 || len(c.spans) == 0 {
		t.Errorf("%d spans; warnings: %q", len(c.spans), list)
	}
}

// TestRejected reads what a collector rejected, and survives invalid answers.
func TestRejected(t *testing.T) {
	partial := protowire.AppendTag(nil, 1, protowire.VarintType)
	partial = protowire.AppendVarint(partial, 3)
	partial = protowire.AppendTag(partial, 2, protowire.BytesType)
	partial = protowire.AppendString(partial, "too\x1b[2J old")
	whole := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial)
	if got := describeRejected(whole); !strings.HasPrefix(got, "3 items: too") || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
	if got := describeRejected([]byte{10, 2, 8, 1}); got != "1 item" {
		t.Errorf("without a text: %q", got)
	}
	for n := range whole {
		_ = describeRejected(whole[:n])
	}
	if got := describeRejected([]byte(`{"partialSuccess":{}}`)); got != "" {
		t.Errorf("%q", got)
	}
}

func TestHistoryBound(t *testing.T) {
	var h history
	for range 100 {
		h.addMessage(message{Role: "user", Parts: []part{{Type: "text", Content: strings.Repeat("x", 10_000)}}})
	}
	if h.bytes > maxHistory || len(h.messages) != 6 {
		t.Errorf("%d messages of %d bytes are kept, want 6 within %d", len(h.messages), h.bytes, maxHistory)
	}
}

// TestResumedSession makes the spans of a session that another process began.
func TestResumedSession(t *testing.T) {
	c := newCollector(t, accept)
	e, _ := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_METRICS_EXPORTER": "none"})
	created, err := json.Marshal(record.SessionCreated{Model: loop.ModelInfo{Provider: "openai", Model: "gpt"}, Tools: []record.OfferedTool{{Name: "shell"}}})
	if err != nil {
		t.Fatal(err)
	}
	e.Observe(record.Record{Session: "ses_1", Kind: record.KindSessionResumed, Payload: created, Time: time.Now()}, nil)
	for _, p := range []record.Payload{record.TurnStarted{}, record.ToolCompleted{CallID: "tu_1", Name: "shell"}, record.TurnCompleted{Reason: loop.StopAnswered}} {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		e.Observe(record.Record{Session: "ses_1", Kind: p.Kind(), Payload: raw, Time: time.Now()}, nil)
	}
	e.Close(t.Context())
	for _, name := range []string{"invoke_agent caisson", "execute_tool shell"} {
		if s := c.spans[name]; s == nil || attributeOf(s, "error.type") != "" {
			t.Errorf("%s: %v", name, s)
		}
	}
}

// A client's span is linked to. It is not the parent: its trace differs, and
// its flag against sampling doesn't count.
func TestLinkToTheClient(t *testing.T) {
	for traceparent, want := range map[string]string{
		"": "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00": "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": "",
	} {
		c := newCollector(t, accept)
		e, _ := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_METRICS_EXPORTER": "none"})
		observe(t, e, map[int]record.Payload{
			0: record.SessionCreated{Model: loop.ModelInfo{Provider: "openai", Model: "gpt"}},
			1: record.TurnStarted{Traceparent: traceparent},
			2: record.TurnCompleted{Reason: loop.StopAnswered},
		}, nil)
		e.Close(t.Context())
		s := c.spans["invoke_agent caisson"]
		if s == nil {
			t.Errorf("%q: no span", traceparent)
			continue
		}
		got := ""
		for _, l := range s.Links {
			got += fmt.Sprintf("%x %x", l.TraceId, l.SpanId)
		}
		if got != want || len(s.ParentSpanId) > 0 || fmt.Sprintf("%x", s.TraceId) == "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%q: links %q, want %q; the parent is %x in %x", traceparent, got, want, s.ParentSpanId, s.TraceId)
		}
	}
}

// A turn that another process began gets a span, but not if it is only
// cancelled.
func TestContinuedTurn(t *testing.T) {
	for name, c := range map[string]struct {
		last record.Payload
		want bool
	}{
		"continued": {record.TurnCompleted{Reason: loop.StopAnswered}, true},
		"abandoned": {record.TurnCancelled{By: "session"}, false},
	} {
		to := newCollector(t, accept)
		e, _ := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL, "OTEL_METRICS_EXPORTER": "none"})
		resumed := record.SessionResumed{SessionCreated: record.SessionCreated{Model: loop.ModelInfo{Provider: "openai", Model: "gpt"}}, Unfinished: "trn_1"}
		payloads := map[int]record.Payload{0: resumed, 1: c.last}
		if c.want {
			payloads = map[int]record.Payload{0: resumed, 1: record.ModelCallStarted{}, 2: record.ModelCallCompleted{Finish: "stop"}, 3: c.last}
		}
		observe(t, e, payloads, map[int]string{2: "b"})
		e.Close(t.Context())
		s := to.spans["invoke_agent caisson"]
		if (s != nil) != c.want || s != nil && attributeOf(s, "error.type") != "" {
			t.Errorf("%s: the span of the turn is %v", name, s)
		}
		if chat := to.spans["chat "]; c.want && (chat == nil || string(chat.ParentSpanId) != string(s.SpanId)) {
			t.Errorf("%s: the model call %v is not below the turn", name, chat)
		}
	}
}

// Requests of a call's workers are spans with their usage, without texts.
func TestSpansOfWorkers(t *testing.T) {
	c := newCollector(t, accept)
	e, _ := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"})
	model := func(name string) loop.ModelCall {
		return loop.ModelCall{Round: 1, Profile: name, Attempt: 1, Model: loop.ModelInfo{Provider: "openai", Model: name}}
	}
	observe(t, e, map[int]record.Payload{
		0: record.SessionCreated{Model: loop.ModelInfo{Provider: "openai", Model: "gpt"}, Tools: []record.OfferedTool{{Name: "confer"}}},
		1: record.TurnStarted{},
		2: record.ToolCalled{CallID: "tu_1", Name: "confer"},
		3: record.WorkerModelCall{CallID: "tu_1", Worker: "fast", EndedModelCall: record.EndedModelCall{ModelCall: model("fast"), LatencyMS: 500, Usage: limits.Usage{InputTokens: 5, OutputTokens: 3}}},
		4: record.WorkerModelCall{CallID: "tu_1", Worker: "gone", EndedModelCall: record.EndedModelCall{ModelCall: model("gone"), Class: "auth", Message: "secret words"}},
		5: record.ToolCompleted{CallID: "tu_1", Name: "confer", LatencyMS: 3000},
		6: record.TurnCompleted{Reason: loop.StopAnswered},
	}, nil)
	e.Close(t.Context())
	for name, want := range map[string]string{"chat fast": "", "chat gone": "auth"} {
		s := c.spans[name]
		if s == nil {
			t.Errorf("no span %s", name)
			continue
		}
		if attributeOf(s, "error.type") != want || attributeOf(s, "caisson.purpose") != "worker" || strings.Contains(s.String(), "secret words") {
			t.Errorf("span %s", s)
		}
	}
	if s := c.spans["chat fast"]; s != nil && (!strings.Contains(s.String(), "int_value:5") || s.EndTimeUnixNano-s.StartTimeUnixNano != uint64(500*time.Millisecond)) {
		t.Errorf("span %s", s)
	}
}

// TestLogs: refusals and what a person should look at are warnings, the end of the work
// is an error. Names that the model made up are not exported.
func TestLogs(t *testing.T) {
	for want, payloads := range map[log.Severity][]record.Payload{
		log.SeverityInfo: {
			record.SessionCreated{},
			record.SandboxStarted{},
			record.NetworkOpened{},
			record.SessionEnded{},
			record.ConfirmationRequested{},
			record.ConfirmationResolved{Decision: approval.DecisionAllow},
		},
		log.SeverityWarn: {
			record.SandboxStarted{Attestation: sandbox.Attestation{Lost: []string{"seccomp"}}},
			record.ConfirmationRequested{Dangerous: "rm -rf"},
			record.ConfirmationResolved{Decision: approval.DecisionDeny},
			record.ConfirmationAttempted{},
			record.NetworkDenied{},
			record.SessionEnded{ExitStatus: 3},
			record.SessionEnded{HostExecuted: []record.HostExecuted{{Path: "Makefile"}}},
			record.MCPToolsChanged{},
		},
		log.SeverityError: {record.SandboxLost{}, record.SessionEnded{Problem: &record.Problem{}}, record.SessionEnded{Left: []string{"a mount"}}},
	} {
		for _, p := range payloads {
			if got := severityOf(p); got != want {
				t.Errorf("%T %+v is %s, want %s", p, p, got, want)
			}
		}
	}
	for image, want := range map[string]string{"host": "host", "debian:bookworm-slim": "debian:bookworm-slim", "rootfs:/home/ada/base": "rootfs", "oci-layout:/home/ada/x:1": "oci-layout", "rootfs:../x": unknownTool} {
		if got := imageName(image); got != want {
			t.Errorf("the image %s is exported as %s, want %s", image, got, want)
		}
	}
	s := &session{offered: map[tools.Name]bool{"shell": true}}
	for name, want := range map[tools.Name]string{"shell": "shell", "sk-secret": unknownTool} {
		if got := s.eventAttributes(record.ConfirmationRequested{Name: name})[0].Value.AsString(); got != want {
			t.Errorf("the tool %s is exported as %s", name, got)
		}
	}
}

// TestOnlyLogs exports to a collector of logs only, until it refuses.
func TestOnlyLogs(t *testing.T) {
	var mu sync.Mutex
	var names []string
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var data logspb.LogsData
		if err := errors.Join(err, proto.Unmarshal(body, &data)); err != nil || r.URL.Path != "/only" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, l := range data.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			names = append(names, l.GetEventName())
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	for _, answer := range []int{http.StatusOK, http.StatusNotFound} {
		status, names = answer, nil
		e, warnings := open(t, map[string]string{"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": server.URL + "/only", "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION": "none"})
		payloads, parents := aTurn()
		observe(t, e, payloads, parents)
		e.Close(t.Context())
		if want := []string{"caisson.session.created", "caisson.tool.confirmation_requested"}; !slices.Equal(names, want) {
			t.Errorf("exported %q, want %q", names, want)
		}
		if list := warnings(); (len(list) > 0) != (answer != http.StatusOK) {
			t.Errorf("status %d: warnings %q", answer, list)
		}
	}
}
