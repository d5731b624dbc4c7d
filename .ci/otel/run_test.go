package otel

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// The task of the run: canary stands for contents, token is the collector's secret, which
// the model says too.
const (
	canary = "canary-7c1f"
	token  = "tok-4b1d9e7f2c"
	parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

const script = `
version: 1
name: scripted-model
task: look for ` + canary + `
turns:
  - text: I look at both at once, ` + canary + `.
    calls:
      - tool: shell
        input: {command: "env; echo ` + canary + `"}
        expect: {contains: HOME=}
      - tool: read_file
        input: {path: ` + canary + `.txt}
      - tool: ` + canary + `
        input: {}
  - text: Now one that fails.
    calls:
      - tool: shell
        input: {command: "exit 3"}
  - text: The token is ` + token + `, and all is well.
`

// program is the built program with a home, a workspace and a script of the model.
type program struct {
	t         *testing.T
	bin       string
	dir       string
	workspace string
	model     string
	env       []string
}

// newProgram returns a program whose telemetry is sent to endpoint.
func newProgram(t *testing.T, endpoint, script string, env ...string) *program {
	t.Helper()
	bin := os.Getenv("E2E_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(filepath.Join(bin, "caisson"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &program{t: t, bin: bin, dir: dir, workspace: filepath.Join(dir, "workspace"), model: "replay/" + filepath.Join(dir, "script.yaml")}
	p.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "TRACEPARENT=" + parent,
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20" + token, "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=ci",
	}, env...)
	if err := os.Mkdir(p.workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"script.yaml": script, "workspace/" + canary + ".txt": canary + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// command returns a command of the program on the workspace, in a session on gVisor.
func (p *program) command(stderr io.Writer, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.t.Context(), p.bin, append(args, "--backend", "gvisor")...)
	cmd.Dir, cmd.Env, cmd.Stderr = p.workspace, p.env, stderr
	return cmd
}

// check fails the test where a command failed with err, and skips it where no sandbox can
// start.
func (p *program) check(err error, output string) {
	p.t.Helper()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 44 && os.Getenv("REQUIRE_BACKENDS") == "" {
		p.t.Skipf("no sandbox can start here: %s", output)
	}
	if err != nil {
		p.t.Fatalf("%v\n%s", err, output)
	}
}

// run runs the script with its telemetry sent to endpoint, and returns the program's
// notices and its records.
func run(t *testing.T, endpoint string, env ...string) (notices, records string) {
	t.Helper()
	p := newProgram(t, endpoint, script, env...)
	var stderr strings.Builder
	out, err := p.command(&stderr, "run", "--json", "--policy", "default", "--on-prompt", "allow", "--model", p.model).Output()
	p.check(err, string(out)+stderr.String())
	return stderr.String(), string(out)
}

// TestTelemetryOfARun receives the spans and metrics of a run with a real sandbox.
func TestTelemetryOfARun(t *testing.T) {
	endpoint, got := startCollector(t)
	notices, records := run(t, endpoint)
	if strings.Contains(notices, "telemetry") {
		t.Errorf("a warning: %s", notices)
	}
	checkTree(t, got)
	checkLogs(t, got, records, false)
	c := readConventions(t)
	for _, s := range got.spans {
		for _, fault := range c.checkSpan(s, false) {
			t.Error(fault)
		}
		if all := describe(s); strings.Contains(all, canary) {
			t.Errorf("contents are exported: %s", all)
		}
	}
	for _, name := range []string{"gen_ai.client.operation.duration", "gen_ai.client.token.usage", "gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"} {
		if _, ok := got.metrics[name]; !ok {
			t.Errorf("the metric %s is missing", name)
		}
	}
	for _, m := range got.metrics {
		for _, fault := range c.checkMetric(m) {
			t.Error(fault)
		}
	}
	for name, want := range map[string]string{"service.name": "caisson", "deployment.environment.name": "ci"} {
		if got.resource[name] != want {
			t.Errorf("resource: %s is %v, want %s", name, got.resource[name], want)
		}
	}
	// The sandbox printed its environment: neither the variables nor the token are in it,
	// and what the model says of the token is redacted.
	if !strings.Contains(records, "HOME=") || strings.Contains(records, "OTEL_RESOURCE_ATTRIBUTES") || strings.Contains(records, "TRACEPARENT") {
		t.Error("the sandbox has variables of OpenTelemetry, or did not print its own")
	}
	if strings.Contains(records, token) {
		t.Error("the records have the collector's token")
	}
}

// treeOf returns a line per span: the span above it, or its ID, its name and its error.
// It fails the test where a span is not within the one above it; the start of a sandbox
// that a turn did not need may end later.
func treeOf(t *testing.T, got *received) []string {
	t.Helper()
	ids := map[pcommon.SpanID]ptrace.Span{}
	var lines []string
	for _, s := range got.spans {
		ids[s.SpanID()] = s
	}
	for _, s := range got.spans {
		above := s.ParentSpanID().String()
		if p, ok := ids[s.ParentSpanID()]; ok {
			above = p.Name()
			if late := s.EndTimestamp() > p.EndTimestamp() && s.Name() != "start_sandbox"; s.StartTimestamp() < p.StartTimestamp() || late {
				t.Errorf("%s is not within %s", s.Name(), above)
			}
			if s.TraceID() != p.TraceID() {
				t.Errorf("%s is of another trace than %s", s.Name(), above)
			}
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%s > %s %s", above, s.Name(), text(s, "error.type")), " "))
	}
	slices.Sort(lines)
	return lines
}

// checkTree checks which span is below which, and how many there are.
func checkTree(t *testing.T, got *received) {
	t.Helper()
	for _, s := range got.spans {
		if s.TraceID().String() != parent[3:35] {
			t.Errorf("%s is of the trace %s, not of the caller's", s.Name(), s.TraceID())
		}
	}
	lines := treeOf(t, got)
	want := []string{
		"b7ad6b7169203331 > invoke_agent caisson",
		"execute_tool shell > wait_for_approval",
		"execute_tool shell > wait_for_approval",
		"invoke_agent caisson > chat scripted-model",
		"invoke_agent caisson > chat scripted-model",
		"invoke_agent caisson > chat scripted-model",
		"invoke_agent caisson > execute_tool _OTHER not_found",
		"invoke_agent caisson > execute_tool read_file",
		"invoke_agent caisson > execute_tool shell",
		"invoke_agent caisson > execute_tool shell",
		"invoke_agent caisson > start_sandbox",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("spans\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// checkLogs checks that each audit record, and no other, was exported with the hash of its
// line and, if content is asked for, its payload.
func checkLogs(t *testing.T, got *received, records string, content bool) {
	t.Helper()
	logs := map[string]plog.LogRecord{}
	for _, l := range got.logs {
		seq, _ := l.Attributes().Get("caisson.record.seq")
		logs[seq.AsString()] = l
		all := fmt.Sprint(l.EventName(), l.Attributes().AsRaw(), l.Body().AsString())
		if strings.Contains(all, token) || !content && strings.Contains(all, canary) {
			t.Errorf("contents are exported: %s", all)
		}
	}
	kinds := map[string]int{}
	for line := range strings.Lines(records) {
		var r struct {
			Seq     int64           `json:"seq"`
			Kind    string          `json:"kind"`
			Turn    string          `json:"turn"`
			Payload json.RawMessage `json:"payload"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		l, ok := logs[fmt.Sprint(r.Seq)]
		switch r.Kind {
		case "session.created", "sandbox.started", "tool.confirmation_requested", "tool.confirmation_resolved", "session.ended":
		default:
			if ok {
				t.Errorf("%s is exported", r.Kind)
			}
			continue
		}
		if !ok {
			t.Errorf("%s, record %d, is not exported", r.Kind, r.Seq)
			continue
		}
		kinds[r.Kind]++
		sum := sha256.Sum256([]byte(strings.TrimSuffix(line, "\n")))
		if hash, _ := l.Attributes().Get("caisson.record.sha256"); hash.AsString() != hex.EncodeToString(sum[:]) {
			t.Errorf("%s has the hash %s", r.Kind, hash.AsString())
		}
		if l.EventName() != "caisson."+r.Kind || l.SeverityNumber() != plog.SeverityNumberInfo && l.SeverityNumber() != plog.SeverityNumberWarn {
			t.Errorf("%s is the event %s with severity %s", r.Kind, l.EventName(), l.SeverityText())
		}
		if (r.Turn != "") != (l.TraceID().String() == parent[3:35] && !l.SpanID().IsEmpty() && l.SpanID().String() != parent[36:52]) {
			t.Errorf("%s of the turn %q is in the span %s", r.Kind, r.Turn, l.SpanID())
		}
		if body := l.Body().AsString(); content != (body == string(r.Payload)) {
			t.Errorf("%s has the body %q", r.Kind, body)
		}
	}
	if kinds["session.created"] != 1 || kinds["sandbox.started"] != 1 || kinds["tool.confirmation_resolved"] != 2 || kinds["session.ended"] != 1 {
		t.Errorf("exported %v", kinds)
	}
}

// TestContents asks for contents: they are exported, as redacted as records are.
func TestContents(t *testing.T) {
	endpoint, got := startCollector(t)
	_, records := run(t, endpoint, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY")
	checkTree(t, got)
	checkLogs(t, got, records, false)
	c := readConventions(t)
	seen := map[string]bool{}
	for _, s := range got.spans {
		for _, fault := range c.checkSpan(s, true) {
			t.Error(fault)
		}
		if all := describe(s); strings.Contains(all, token) {
			t.Errorf("the token is exported: %s", all)
		}
		for name, value := range s.Attributes().All() {
			seen[name] = seen[name] || strings.Contains(value.AsString(), canary)
			if name != "gen_ai.input.messages" && name != "gen_ai.output.messages" {
				continue
			}
			var messages []struct {
				Role  string           `json:"role"`
				Parts []map[string]any `json:"parts"`
			}
			if err := json.Unmarshal([]byte(value.AsString()), &messages); err != nil || len(messages) == 0 || messages[0].Role == "" || len(messages[0].Parts) == 0 {
				t.Errorf("%s: %s is no list of messages: %v", s.Name(), name, err)
			}
		}
	}
	for _, name := range []string{"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} {
		if !seen[name] {
			t.Errorf("no %s has the contents", name)
		}
	}
}

// TestContentsOfLogs asks for contents everywhere: logs have the records' payloads.
func TestContentsOfLogs(t *testing.T) {
	endpoint, got := startCollector(t)
	_, records := run(t, endpoint, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true")
	checkLogs(t, got, records, true)
}

// describe returns all texts of a span.
func describe(s ptrace.Span) string {
	text := fmt.Sprint(s.Name(), s.Attributes().AsRaw(), s.Status().Message())
	for _, e := range s.Events().All() {
		text += fmt.Sprint(e.Name(), e.Attributes().AsRaw())
	}
	return text
}
