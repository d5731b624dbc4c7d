package otel

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// conventions are the facts of the conventions that testdata/conventions.json has, with
// their source.
type conventions struct {
	Source  string                `json:"source"`
	Spans   map[string]definition `json:"spans"`
	Metrics map[string]definition `json:"metrics"`
	// Types are the types of attributes.
	Types map[string]string `json:"types"`
}

// definition is the definition of a span or a metric: its attributes have a requirement
// level.
type definition struct {
	Kind, Unit, Instrument string
	Attributes             map[string]string
}

func readConventions(t *testing.T) conventions {
	t.Helper()
	data, err := os.ReadFile("testdata/conventions.json")
	if err != nil {
		t.Fatal(err)
	}
	var c conventions
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Spans) < 3 || len(c.Metrics) < 3 || len(c.Types) < 20 {
		t.Fatalf("the conventions were not read: %d spans, %d metrics, %d types", len(c.Spans), len(c.Metrics), len(c.Types))
	}
	return c
}

// own is what the names of our own attributes begin with; container.id, process.exit.code
// and http.response.status_code are of other conventions.
func own(name string) bool {
	return strings.HasPrefix(name, "caisson.") || slices.Contains([]string{"container.id", "process.exit.code", "http.response.status_code"}, name)
}

// operations are the spans of the conventions by their operation, with the attribute that
// the span's name ends with.
var operations = map[string]struct{ span, named string }{
	"chat":         {"gen_ai.inference.client", "gen_ai.request.model"},
	"invoke_agent": {"gen_ai.invoke_agent.internal", "gen_ai.agent.name"},
	"execute_tool": {"gen_ai.execute_tool.internal", "gen_ai.tool.name"},
}

// ownSpans are spans that the conventions don't have.
var ownSpans = []string{"start_sandbox", "wait_for_approval", "execute_command"}

// laterMetrics are those of the conventions after the version that the facts are of.
var laterMetrics = map[string]string{
	"gen_ai.invoke_agent.duration": "s", "gen_ai.execute_tool.duration": "s",
	"gen_ai.invoke_agent.inference_calls": "{call}", "gen_ai.invoke_agent.tool_calls": "{call}",
}

// checkSpan returns what is wrong with a span. content reports whether contents were asked
// for.
func (c conventions) checkSpan(s ptrace.Span, content bool) (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, s.Name()+": "+fmt.Sprintf(format, args...)) }
	attributes := s.Attributes()
	if slices.Contains(ownSpans, s.Name()) {
		for name := range attributes.All() {
			if !own(name) && c.Types[name] == "" {
				bad("the conventions have no attribute %s", name)
			}
		}
		return faults
	}
	operation := text(s, "gen_ai.operation.name")
	as, ok := operations[operation]
	if !ok {
		bad("unknown operation %q", operation)
		return faults
	}
	def := c.Spans[as.span]
	if want := operation + " " + text(s, as.named); s.Name() != want {
		bad("want the name %q", want)
	}
	if !strings.EqualFold(s.Kind().String(), def.Kind) {
		bad("kind %s, want %s", s.Kind(), def.Kind)
	}
	if s.EndTimestamp() < s.StartTimestamp() {
		bad("it ends before it begins")
	}
	for name, level := range def.Attributes {
		_, there := attributes.Get(name)
		switch {
		case level == "required" && !there:
			bad("the required attribute %s is missing", name)
		case level == "opt_in" && there && !content:
			bad("the attribute %s was not asked for", name)
		}
	}
	_, failed := attributes.Get("error.type")
	if failed != (s.Status().Code() == ptrace.StatusCodeError) {
		bad("error.type and the status %s differ", s.Status().Code())
	}
	if _, ok := attributes.Get("server.address"); ok {
		if _, ok := attributes.Get("server.port"); !ok {
			bad("server.address without server.port")
		}
	}
	// "Conditionally required" where we always have it.
	for _, name := range []string{"gen_ai.request.model", "gen_ai.conversation.id", "gen_ai.agent.name"} {
		if _, ok := attributes.Get(name); def.Attributes[name] == "conditionally_required" && !ok {
			bad("%s is known, and missing", name)
		}
	}
	for name, value := range attributes.All() {
		if own(name) || name == "gen_ai.conversation.id" { // execute_tool has it too, as all spans may
			continue
		}
		if def.Attributes[name] == "" {
			bad("the conventions have no attribute %s there", name)
		}
		if want := wireType(c.Types[name]); value.Type() != want {
			bad("%s is a %s, want a %s", name, value.Type(), want)
		}
	}
	return faults
}

// checkMetric returns what is wrong with a metric.
func (c conventions) checkMetric(m pmetric.Metric) (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, m.Name()+": "+fmt.Sprintf(format, args...)) }
	if m.Type() != pmetric.MetricTypeHistogram {
		bad("it is no histogram")
		return faults
	}
	if unit, ok := laterMetrics[m.Name()]; ok {
		if m.Unit() != unit {
			bad("unit %s, want %s", m.Unit(), unit)
		}
		return faults
	}
	def, ok := c.Metrics[m.Name()]
	if !ok {
		bad("the conventions don't have it")
		return faults
	}
	if m.Unit() != def.Unit {
		bad("unit %s, want %s", m.Unit(), def.Unit)
	}
	for _, p := range m.Histogram().DataPoints().All() {
		for name, level := range def.Attributes {
			if _, ok := p.Attributes().Get(name); !ok && level == "required" {
				bad("the required attribute %s is missing", name)
			}
		}
		for name := range p.Attributes().All() {
			if def.Attributes[name] == "" {
				bad("the conventions have no attribute %s there", name)
			}
		}
	}
	return faults
}

// text returns an attribute as text, "" if it is missing.
func text(s ptrace.Span, name string) string {
	if v, ok := s.Attributes().Get(name); ok {
		return v.AsString()
	}
	return ""
}

// wireType returns the type that a value has on the wire.
func wireType(t string) pcommon.ValueType {
	switch t {
	case "int":
		return pcommon.ValueTypeInt
	case "double":
		return pcommon.ValueTypeDouble
	case "boolean":
		return pcommon.ValueTypeBool
	case "string[]":
		return pcommon.ValueTypeSlice
	}
	return pcommon.ValueTypeStr // "any" is JSON on spans
}

// TestCheckSeesFaults is the control of the checks: spans and metrics that are wrong.
func TestCheckSeesFaults(t *testing.T) {
	c := readConventions(t)
	good := func() ptrace.Span {
		s := ptrace.NewSpan()
		s.SetName("chat m")
		s.SetKind(ptrace.SpanKindClient)
		for k, v := range map[string]string{
			"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m", "gen_ai.conversation.id": "ses_1",
		} {
			s.Attributes().PutStr(k, v)
		}
		return s
	}
	if faults := c.checkSpan(good(), false); len(faults) > 0 {
		t.Fatalf("a good span: %q", faults)
	}
	for name, spoil := range map[string]func(s ptrace.Span){
		"name":      func(s ptrace.Span) { s.SetName("chat") },
		"kind":      func(s ptrace.Span) { s.SetKind(ptrace.SpanKindInternal) },
		"required":  func(s ptrace.Span) { s.Attributes().Remove("gen_ai.provider.name") },
		"opt-in":    func(s ptrace.Span) { s.Attributes().PutStr("gen_ai.input.messages", "[]") },
		"unknown":   func(s ptrace.Span) { s.Attributes().PutStr("gen_ai.usage.cost", "1") },
		"type":      func(s ptrace.Span) { s.Attributes().PutStr("gen_ai.usage.input_tokens", "1") },
		"status":    func(s ptrace.Span) { s.Attributes().PutStr("error.type", "rate_limited") },
		"port":      func(s ptrace.Span) { s.Attributes().PutStr("server.address", "h") },
		"operation": func(s ptrace.Span) { s.Attributes().PutStr("gen_ai.operation.name", "think") },
		"time":      func(s ptrace.Span) { s.SetStartTimestamp(2) },
	} {
		s := good()
		spoil(s)
		if faults := c.checkSpan(s, false); len(faults) == 0 {
			t.Errorf("%s: no fault is seen", name)
		}
	}
	m := pmetric.NewMetric()
	m.SetName("gen_ai.client.token.usage")
	m.SetUnit("{token}")
	m.SetEmptyHistogram().DataPoints().AppendEmpty()
	if faults := c.checkMetric(m); len(faults) != 3 {
		t.Errorf("a metric without its three required attributes: %q", faults)
	}
}
