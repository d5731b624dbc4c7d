package dispatch_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/file"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/shell"
	"github.com/caisson-run/caisson/tools/workspace"
)

// The examples of the dispatcher specification (docs/internal/specification.md §9)
// and its list of tests (§10), on a dispatcher as others see it. Files are real,
// commands are a fake's. "Decided" marks deviations; docs/internal/specification.md
// maps the rest.

// specification is one session: a real workspace, and the reported events.
type specification struct {
	t *testing.T
	// root is the workspace. Two directories above it is etc/passwd, which holds
	// the canary, so that the path of example 9.2 leads to something.
	root, canary string
	view         workspace.View
	d            *dispatch.Dispatcher
	logs         *observer.ObservedLogs

	mu     sync.Mutex
	events []dispatch.Event
}

// given describes a session. The zero value is the default policy and nobody to
// ask.
type given struct {
	policy  func(*policy.Policy)
	person  person
	timeout time.Duration
	run     commands
	view    func(workspace.View) workspace.View
	more    []tools.Factory
	grants  string // the file of lasting answers; "" is none
}

// person answers what is asked.
type person func(ctx context.Context, c approval.Confirmation) (approval.Answer, error)

func (p person) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	return p(ctx, c)
}

// says is a person who always gives this answer.
func says(d approval.Decision, s approval.Scope) person {
	return func(context.Context, approval.Confirmation) (approval.Answer, error) {
		return approval.Answer{Decision: d, Scope: s}, nil
	}
}

// commands runs what the shell tool is given.
type commands func(ctx context.Context, cmd shell.Command) (shell.Result, error)

func (c commands) Run(ctx context.Context, cmd shell.Command) (shell.Result, error) {
	return c(ctx, cmd)
}

// direct makes file changes in place of the sandbox.
type direct struct{ *workspace.Writer }

func newSpecification(t *testing.T, g given) *specification {
	t.Helper()
	base := t.TempDir()
	var random [16]byte
	_, _ = rand.Read(random[:])
	s := &specification{t: t, root: filepath.Join(base, "home", "p"), canary: hex.EncodeToString(random[:])}
	s.must(os.MkdirAll(s.root, 0o755))
	s.must(os.Mkdir(filepath.Join(base, "etc"), 0o755))
	s.must(os.WriteFile(filepath.Join(base, "etc", "passwd"), []byte(s.canary), 0o644))
	dir, err := workspace.OpenDir(s.root)
	s.must(err)
	t.Cleanup(func() { _ = dir.Close() })
	reader, err := workspace.NewReader(dir, workspace.ReaderOptions{HostPath: s.root, ContainerPath: "/workspace"})
	s.must(err)
	s.view = reader
	if g.view != nil {
		s.view = g.view(reader)
	}

	policy, err := policy.Preset("default")
	s.must(err)
	if g.policy != nil {
		g.policy(&policy)
	}
	logger, logs := observer.New(zap.DebugLevel)
	s.logs = logs
	o := dispatch.Options{
		Session: "ses_spec", Workspace: s.root, Policy: policy, ConfirmTimeout: g.timeout, Emit: s.emit, Logger: zap.New(logger),
		Scope: func(path string) error { return reader.Scope(context.Background(), path) },
	}
	if g.person != nil {
		o.Broker = approval.NewBroker(approval.BrokerOptions{})
		o.Broker.Attach("terminal", g.person)
	}
	if g.grants != "" {
		o.Grants = approval.NewGrants(g.grants)
	}
	s.d, err = dispatch.New(o)
	s.must(err)
	t.Cleanup(func() {
		if err := s.d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	all, err := file.Factories(file.Options{
		Reader:  s.view,
		Applier: direct{Writer: workspace.NewWriter(dir, workspace.WriterOptions{HostPath: s.root, ContainerPath: "/workspace"})},
	})
	s.must(err)
	if g.run == nil {
		g.run = func(context.Context, shell.Command) (shell.Result, error) { return shell.Result{}, nil }
	}
	run, err := shell.New(g.run, shell.Options{HostRoot: s.root})
	s.must(err)
	for _, f := range append(append(all, run), g.more...) {
		s.must(s.d.Register(f))
	}
	return s
}

func (s *specification) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *specification) emit(ev dispatch.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, ev)
	return nil
}

func (s *specification) write(name, content string) {
	s.t.Helper()
	p := filepath.Join(s.root, name)
	s.must(os.MkdirAll(filepath.Dir(p), 0o755))
	s.must(os.WriteFile(p, []byte(content), 0o644))
}

// content returns a file's content, or "-".
func (s *specification) content(name string) string {
	b, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return "-"
	}
	return string(b)
}

func (s *specification) round(calls ...tools.Call) []tools.Result {
	s.t.Helper()
	results, err := s.d.Round(context.Background(), calls)
	s.must(err)
	return results
}

// use is a ToolUseBlock.
func use(id, name, input string) tools.Call {
	return tools.Call{ID: id, Name: tools.Name(name), Input: json.RawMessage(input)}
}

// of returns the events of one call with the fields that the specification names,
// by their names on the wire.
func (s *specification) of(id string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, ev := range s.events {
		if owner, text := spell(ev); owner == id {
			all = append(all, text)
		}
	}
	return all
}

func spell(ev dispatch.Event) (id, text string) {
	switch ev := ev.(type) {
	case dispatch.Called:
		return ev.CallID, fmt.Sprintf("tool.called {tool_name: %s, side_effects: %s}", ev.Name, ev.Class)
	case dispatch.OutputDelta:
		return ev.CallID, fmt.Sprintf("tool.output_delta {%s: %q}", ev.Stream, ev.Text)
	case dispatch.Completed:
		text = fmt.Sprintf("tool.completed {success: %t, output_size_bytes: %d", ev.Success, ev.OutputBytes)
		if len(ev.FilesModified) > 0 {
			text += fmt.Sprintf(", files_modified: %q", ev.FilesModified)
		}
		if ev.Command != nil {
			text += fmt.Sprintf(", command_executed: %q", *ev.Command)
		}
		return ev.CallID, text + "}"
	case dispatch.Failed:
		text = fmt.Sprintf("tool.failed {error_class: %s", ev.Class)
		if ev.Reason != "" {
			text += ", reason: " + ev.Reason
		}
		if ev.Partial != "" {
			text += ", partial_output"
		}
		return ev.CallID, text + "}"
	case dispatch.InputInvalid:
		return ev.CallID, fmt.Sprintf("tool.input_invalid {validation_errors: %d}", len(ev.Errors))
	case dispatch.ConfirmationRequested:
		c := ev.Confirmation
		return c.CallID, fmt.Sprintf("tool.confirmation_requested {tool_name: %s, side_effects: %s, input_summary: %s, projected_modifications: %q}",
			c.Name, c.Class, c.Summary, c.Projected)
	case dispatch.ConfirmationResolved:
		return ev.CallID, fmt.Sprintf("tool.confirmation_resolved {decision: %s, scope: %s, by: %s}", ev.Decision, ev.Scope, ev.By)
	case dispatch.Warning:
		return ev.CallID, "warning " + ev.Message
	}
	return "", fmt.Sprintf("%T", ev)
}

func (s *specification) wantEvents(id string, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.of(id)); diff != "" {
		s.t.Errorf("events of %s (-want +got):\n%s", id, diff)
	}
}

// wantResult checks the ToolResultBlock of a call.
func (s *specification) wantResult(r tools.Result, id string, isError bool, text string) {
	s.t.Helper()
	if r.CallID != id || r.IsError != isError || said(r) != text {
		s.t.Errorf("the result of %s is {tool_use_id: %s, is_error: %t} %q, want is_error %t and %q", id, r.CallID, r.IsError, said(r), isError, text)
	}
	if strings.Contains(said(r), s.canary) {
		s.t.Errorf("the result of %s has the canary", id)
	}
}

func said(r tools.Result) string {
	var parts []string
	for _, b := range r.Content {
		parts = append(parts, b.Text)
	}
	return strings.Join(parts, "\n")
}

// failed returns the tool.failed of a call.
func (s *specification) failed(id string) dispatch.Failed {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range s.events {
		if f, ok := ev.(dispatch.Failed); ok && f.CallID == id {
			return f
		}
	}
	s.t.Fatalf("call %s has no tool.failed", id)
	return dispatch.Failed{}
}

// Example 9.1. Decided: the order is the same; tool.completed has the size of what
// the model gets.
func TestSpecification9_1SimpleRead(t *testing.T) {
	s := newSpecification(t, given{})
	s.write("README.md", "# Project Foo\nAll of it.\n")
	r := s.round(use("tu_01HZ_a", "read_file", `{"path": "README.md"}`))[0]
	s.wantResult(r, "tu_01HZ_a", false, "# Project Foo\nAll of it.\n")
	s.wantEvents("tu_01HZ_a",
		"tool.called {tool_name: read_file, side_effects: read}",
		"tool.completed {success: true, output_size_bytes: 25}")
}

// Example 9.2. Decided: the message says what would be accepted; the failure has a
// reason beside its class.
func TestSpecification9_2WorkspaceEscape(t *testing.T) {
	s := newSpecification(t, given{})
	if got := s.content("../../etc/passwd"); got != s.canary {
		t.Fatalf("control: who joins the path and opens it gets %q, so this test shows nothing", got)
	}
	const outside = `"../../etc/passwd": the path leads outside the workspace; ` +
		"only files inside it can be used, and symlinks only if they are relative and stay inside"
	r := s.round(use("tu_01HZ_b", "read_file", `{"path": "../../etc/passwd"}`))[0]
	s.wantResult(r, "tu_01HZ_b", true, outside)
	s.wantEvents("tu_01HZ_b", "tool.failed {error_class: permission_denied, reason: workspace_escape}")
	if f := s.failed("tu_01HZ_b"); f.Message != outside {
		t.Errorf("tool.failed is %+v", f)
	}
}

// Example 9.3. Decided: the message is "The user denied this operation."; a
// resolution has its scope and who decided.
func TestSpecification9_3Denied(t *testing.T) {
	const input = `{"path": "src/auth.ts", "content": "export {}\n"}`
	var shown approval.Confirmation
	s := newSpecification(t, given{person: func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
		shown = c
		return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, nil
	}})
	r := s.round(use("tu_01HZ_c", "write_file", input))[0]
	s.wantResult(r, "tu_01HZ_c", true, "The user denied this operation.")
	const requested = `tool.confirmation_requested {tool_name: write_file, side_effects: write, input_summary: src/auth.ts, projected_modifications: ["src/auth.ts"]}`
	s.wantEvents("tu_01HZ_c",
		requested,
		"tool.confirmation_resolved {decision: deny, scope: once, by: user}",
		"tool.failed {error_class: user_denied, reason: user}")
	if got := s.content("src/auth.ts"); got != "-" {
		t.Errorf("the file holds %q though it was denied", got)
	}
	if want := "--- /dev/null\n+++ b/src/auth.ts\n@@ -0,0 +1 @@\n+export {}\n"; shown.Diff != want || len(shown.ID) != 32 {
		t.Errorf("shown was %+v, want a diff %q and an id of 128 bits", shown, want)
	}

	// The control: the same call, allowed, writes.
	s = newSpecification(t, given{person: says(approval.DecisionAllow, approval.ScopeOnce)})
	r = s.round(use("tu_01HZ_c", "write_file", input))[0]
	s.wantResult(r, "tu_01HZ_c", false, "Created src/auth.ts (10 bytes).")
	s.wantEvents("tu_01HZ_c",
		requested,
		"tool.confirmation_resolved {decision: allow, scope: once, by: user}",
		"tool.called {tool_name: write_file, side_effects: write}",
		`tool.completed {success: true, output_size_bytes: 31, files_modified: ["src/auth.ts"]}`)
	if got := s.content("src/auth.ts"); got != "export {}\n" {
		t.Errorf("the file holds %q though it was allowed", got)
	}
}

// Example 9.4. Decided: SIGKILL follows after 5 s, not 3; a cancelled call is
// tool.failed however the tool returns, with the partial output. e2e
// TestSpecification9_4OnEachBackend shows that the signals are sent.
func TestSpecification9_4CancelShell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		s := newSpecification(t, given{
			person: says(approval.DecisionAllow, approval.ScopeOnce),
			run: func(ctx context.Context, cmd shell.Command) (shell.Result, error) {
				const text = "added 1 package\n"
				_, _ = io.WriteString(cmd.Stdout, text)
				close(started)
				<-ctx.Done() // SIGTERM, which is ignored
				time.Sleep(5 * time.Second)
				head := shell.Capture{Head: []byte(text), Total: int64(len(text))}
				return shell.Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}, Kill: sandbox.KillReport{Killed: 1}}, Stdout: head}, nil
			},
		})
		cancelled := errors.New("the user cancelled the turn")
		go func() {
			<-started
			time.Sleep(2 * time.Minute)
			s.d.Cancel(cancelled)
			s.d.Cancel(errors.New("a second cancel does nothing"))
		}()
		begin := time.Now()
		r := s.round(use("tu_01HZ_d", "shell", `{"command": "npm install"}`))[0]
		if took := time.Since(begin); took != 2*time.Minute+5*time.Second {
			t.Errorf("took %v, want 2 minutes and the 5 s until SIGKILL", took)
		}
		for _, part := range []string{"Cancelled.\n", "killed by signal 9 (SIGKILL)", "added 1 package\n"} {
			if !strings.Contains(said(r), part) {
				t.Errorf("the result lacks %q: %q", part, said(r))
			}
		}
		s.wantEvents("tu_01HZ_d",
			`tool.confirmation_requested {tool_name: shell, side_effects: execute, input_summary: npm install, projected_modifications: []}`,
			"tool.confirmation_resolved {decision: allow, scope: once, by: user}",
			"tool.called {tool_name: shell, side_effects: execute}",
			`tool.output_delta {stdout: "added 1 package\n"}`,
			"tool.failed {error_class: cancelled, partial_output}")
		if f := s.failed("tu_01HZ_d"); !r.IsError || r.Class != tools.ErrorCancelled || !strings.Contains(f.Partial, "added 1 package") {
			t.Errorf("result %+v, tool.failed %+v", r, f)
		}
	})
}

// allIn lets reads go on only once enough of them wait: calls that run one after
// the other never do.
type allIn struct {
	workspace.View
	wanted int

	mu   sync.Mutex
	in   int
	open chan struct{}
}

func (a *allIn) ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error) {
	a.mu.Lock()
	if a.in++; a.in == a.wanted {
		close(a.open)
	}
	a.mu.Unlock()
	select {
	case <-a.open:
		return a.View.ReadFile(ctx, path, offset, most)
	case <-ctx.Done():
		return workspace.File{}, context.Cause(ctx)
	}
}

// script is a model that replays answers and keeps what it was sent.
type script struct {
	answers []loop.Message
	asked   []loop.Request
}

func (m *script) Complete(_ context.Context, req loop.Request, _ func(loop.Delta)) (loop.Response, error) {
	m.asked = append(m.asked, req)
	return loop.Response{Message: m.answers[len(m.asked)-1]}, nil
}

func (m *script) Info() loop.ModelInfo { return loop.ModelInfo{Provider: "test", Model: "script"} }

// Example 9.5, through the loop. Decided: a TOOL message holds one result, so there
// are three, in the order of the calls; tool IDs are ours.
func TestSpecification9_5ParallelReads(t *testing.T) {
	s := newSpecification(t, given{view: func(v workspace.View) workspace.View {
		return &allIn{View: v, wanted: 3, open: make(chan struct{})}
	}})
	three := loop.Message{Role: loop.RoleAssistant}
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		s.write(name, "text of "+name+"\n")
		three.Blocks = append(three.Blocks, loop.Block{ToolUse: &loop.ToolUse{ProviderID: name, Name: "read_file", Raw: fmt.Sprintf(`{"path": %q}`, name)}})
	}
	model := &script{answers: []loop.Message{three, loop.NewText(loop.RoleAssistant, "I read three files.")}}
	out, err := loop.Run(t.Context(), loop.Options{
		Profiles: []loop.Profile{{Model: model}}, Dispatcher: s.d, System: "Read.", Messages: []loop.Message{loop.NewText(loop.RoleUser, "Read all.")},
		Session: "ses_spec", Turn: "trn_spec",
	})
	if err != nil || out.Reason != loop.StopAnswered {
		t.Fatalf("the turn ended %s: %v, %v", out.Reason, out.Err, err)
	}
	if len(model.asked) != 2 {
		t.Fatalf("the model was asked %d times, want twice: before the calls, and with all their results", len(model.asked))
	}
	var results []string
	var ids []string
	for _, m := range model.asked[1].Messages {
		for _, b := range m.Blocks {
			if b.ToolUse != nil {
				ids = append(ids, b.ToolUse.ID)
			}
			if r := b.ToolResult; r != nil {
				if m.Role != loop.RoleTool || len(m.Blocks) != 1 || r.IsError || r.ToolUseID != ids[len(results)] {
					t.Errorf("message %+v, want one good result of %s", m, ids[len(results)])
				}
				results = append(results, boundary.ResultText(r.Content))
			}
		}
	}
	if diff := cmp.Diff([]string{"text of a.txt\n", "text of b.txt\n", "text of c.txt\n"}, results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	for _, id := range ids {
		s.wantEvents(id, "tool.called {tool_name: read_file, side_effects: read}", "tool.completed {success: true, output_size_bytes: 14}")
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 3 {
		t.Errorf("ids %q", ids)
	}
}

type stub struct {
	def tools.Definition
	run func(context.Context, *tools.Call) (tools.Output, error)
}

func (s *stub) Definition() tools.Definition { return s.def }

func (s *stub) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	if s.run == nil {
		return tools.Output{Content: []tools.Block{{Text: "done"}}, Success: true}, nil
	}
	return s.run(ctx, call)
}

// stubbed returns the factory of a stub that everyone may use.
func stubbed(name string, class tools.Class, schema string, run func(context.Context, *tools.Call) (tools.Output, error)) tools.Factory {
	def := tools.Definition{
		Name: tools.Name(name), Description: "A tool of a test.", Class: class, Runs: tools.PlaceHost, EnabledByDefault: true,
		InputSchema: json.RawMessage(schema),
	}
	if class == tools.ClassWrite || class == tools.ClassExecute {
		def.Runs = tools.PlaceSandbox
	}
	return func() tools.Tool { return &stub{def: def, run: run} }
}

const anything = `{"type": "object", "properties": {"x": {"type": "string"}}}`

// Section 10, tests 1 and 2: registration refuses each construct with its path, and
// the tool is not registered.
func TestSpecification10_1Registration(t *testing.T) {
	s := newSpecification(t, given{})
	before := len(s.d.Definitions())
	for construct, schema := range map[string]string{
		"$ref": `{"$ref": "#/properties/y"}`, "oneOf": `{"oneOf": [{}]}`, "anyOf": `{"anyOf": [{}]}`, "allOf": `{"allOf": [{}]}`,
		"not": `{"not": {}}`, "if": `{"if": {}, "then": {}, "else": {}}`, "patternProperties": `{"patternProperties": {"a": {}}}`,
		"additionalProperties": `{"type": "object", "additionalProperties": {"type": "string"}}`,
	} {
		err := s.d.Register(stubbed("novel", tools.ClassRead, fmt.Sprintf(`{"type": "object", "properties": {"x": %s}}`, schema), nil))
		var refused *tools.RegistrationError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "/properties/x/"+construct) {
			t.Errorf("%s: %v, want a *RegistrationError that names its place", construct, err)
		}
	}
	var refused *tools.RegistrationError
	if err := s.d.Register(stubbed("read_file", tools.ClassNone, anything, nil)); !errors.As(err, &refused) {
		t.Errorf("a second read_file: %v", err)
	}
	same := &stub{def: stubbed("novel", tools.ClassRead, anything, nil)().Definition()}
	if err := s.d.Register(func() tools.Tool { return same }); !errors.As(err, &refused) {
		t.Errorf("a factory that gives the same object: %v", err)
	}
	if got := len(s.d.Definitions()); got != before {
		t.Errorf("%d tools after the refusals, %d before", got, before)
	}
	// The control, and unregistering.
	s.must(s.d.Register(stubbed("novel", tools.ClassRead, anything, nil)))
	s.wantResult(s.round(use("tu_1", "novel", `{}`))[0], "tu_1", false, "done")
	if !s.d.Unregister("novel") || s.d.Unregister("novel") {
		t.Error("unregistering says the wrong thing")
	}
	s.round(use("tu_2", "novel", `{}`))
	s.wantEvents("tu_2", "tool.failed {error_class: not_found, reason: unknown_tool}")
}

// Test 3: malformed input for each type. Decided: only tool.input_invalid, with
// every message, which the model gets too.
func TestSpecification10_3MalformedInput(t *testing.T) {
	ran := 0
	schema := `{"type": "object", "required": ["s"], "additionalProperties": false, "properties": {
		"s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "z": {"type": "null"},
		"o": {"type": "object", "properties": {"k": {"type": "string"}}}, "a": {"type": "array", "items": {"type": "integer"}}, "e": {"enum": ["x", "y"]}}}`
	s := newSpecification(t, given{more: []tools.Factory{stubbed("typed", tools.ClassNone, schema, func(context.Context, *tools.Call) (tools.Output, error) {
		ran++
		return tools.Output{Success: true}, nil
	})}})
	for i, c := range []struct {
		input string
		want  []string
	}{
		{`{"s": 1}`, []string{"/s: "}},
		{`{"s": "x", "n": "1"}`, []string{"/n: "}},
		{`{"s": "x", "i": 1.5}`, []string{"/i: "}},
		{`{"s": "x", "b": "true"}`, []string{"/b: "}},
		{`{"s": "x", "z": 0}`, []string{"/z: "}},
		{`{"s": "x", "o": []}`, []string{"/o: "}},
		{`{"s": "x", "o": {"k": 1}}`, []string{"/o/k: "}},
		{`{"s": "x", "a": {}}`, []string{"/a: "}},
		{`{"s": "x", "a": [1, "2"]}`, []string{"/a/1: "}},
		{`{"s": "x", "e": "z"}`, []string{"/e: "}},
		{`{}`, []string{`/: missing property "s"`}},
		{`{"s": "x", "more": 1}`, []string{`/: unknown property "more"`}},
		{`{"n": "1", "b": 2, "e": 3}`, []string{`/: missing property "s"`, "/b: ", "/e: ", "/n: "}},
	} {
		id := fmt.Sprintf("tu_%d", i)
		r := s.round(use(id, "typed", c.input))[0]
		s.wantEvents(id, fmt.Sprintf("tool.input_invalid {validation_errors: %d}", len(c.want)))
		for _, part := range c.want {
			if !r.IsError || !strings.Contains(said(r), "\n- "+part) {
				t.Errorf("%s: the model sees %q, which lacks %q", c.input, said(r), part)
			}
		}
	}
	if ran != 0 {
		t.Errorf("%d malformed calls ran", ran)
	}
	s.round(use("tu_good", "typed", `{"s": "x", "n": 1.5, "i": 1, "b": true, "z": null, "o": {"k": "v"}, "a": [1], "e": "y"}`))
	if ran != 1 {
		t.Error("control: the good input did not run")
	}
}

// Test 4: escapes by "..", absolute paths and symlinks, for every tool with a path.
func TestSpecification10_4Escapes(t *testing.T) {
	s := newSpecification(t, given{policy: func(p *policy.Policy) { p.Classes[tools.ClassWrite] = policy.ModeAuto }})
	passwd := filepath.Join(s.root, "../../etc/passwd")
	for name, target := range map[string]string{"absolute": passwd, "relative": "../../etc/passwd", "folder": "../../etc", "chain": "relative"} {
		s.must(os.Symlink(target, filepath.Join(s.root, name)))
	}
	for i, path := range []string{"../../etc/passwd", "subdir/../../../etc/passwd", passwd, "absolute", "relative", "folder/passwd", "chain"} {
		if !filepath.IsAbs(path) && !strings.HasPrefix(path, "subdir") && s.content(path) != s.canary {
			t.Errorf("control: %q does not lead to the canary", path)
		}
		for tool, more := range map[string]string{"read_file": "", "write_file": `, "content": "x"`, "patch_file": `, "old": "a", "new": "b"`, "list_dir": "", "delete_file": ""} {
			if tool == "delete_file" && i > 2 && path != "folder/passwd" {
				continue // deletes the link itself, which is inside
			}
			id := fmt.Sprintf("tu_%s_%d", tool, i)
			r := s.round(use(id, tool, fmt.Sprintf(`{"path": %q%s}`, path, more)))[0]
			s.wantEvents(id, "tool.failed {error_class: permission_denied, reason: workspace_escape}")
			if strings.Contains(said(r), s.canary) {
				t.Errorf("%s %q gave the canary", tool, path)
			}
		}
	}
	if b, err := os.ReadFile(passwd); err != nil || string(b) != s.canary {
		t.Errorf("the file outside holds %q: %v", b, err)
	}
}

// Tests 5 and 6, and the answer "always allow this tool".
func TestSpecification10_5Prompts(t *testing.T) {
	s := newSpecification(t, given{person: says(approval.DecisionAllow, approval.ScopeOnce)})
	const requested = "tool.confirmation_requested {tool_name: shell, side_effects: execute, input_summary: ls, projected_modifications: []}"
	const called, completed = "tool.called {tool_name: shell, side_effects: execute}", `tool.completed {success: true, output_size_bytes: %d, command_executed: "ls"}`
	for _, id := range []string{"tu_1", "tu_2"} {
		r := s.round(use(id, "shell", `{"command": "ls"}`))[0]
		s.wantEvents(id, requested, "tool.confirmation_resolved {decision: allow, scope: once, by: user}", called, fmt.Sprintf(completed, len(said(r))))
	}
	s = newSpecification(t, given{person: says(approval.DecisionDeny, approval.ScopeOnce), run: func(context.Context, shell.Command) (shell.Result, error) {
		t.Error("a denied command ran")
		return shell.Result{}, nil
	}})
	s.round(use("tu_1", "shell", `{"command": "ls"}`))
	s.wantEvents("tu_1", requested, "tool.confirmation_resolved {decision: deny, scope: once, by: user}", "tool.failed {error_class: user_denied, reason: user}")

	s = newSpecification(t, given{person: says(approval.DecisionAllow, approval.ScopeSession)})
	r := s.round(use("tu_1", "shell", `{"command": "ls"}`))[0]
	s.wantEvents("tu_1", requested, "tool.confirmation_resolved {decision: allow, scope: session, by: user}", called, fmt.Sprintf(completed, len(said(r))))
	r = s.round(use("tu_2", "shell", `{"command": "ls"}`))[0]
	s.wantEvents("tu_2", "tool.confirmation_resolved {decision: allow, scope: session, by: session}", called, fmt.Sprintf(completed, len(said(r))))
}

// Test 7: a confirmation timeout of a second.
func TestSpecification10_7ConfirmationTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpecification(t, given{timeout: time.Second, person: func(ctx context.Context, _ approval.Confirmation) (approval.Answer, error) {
			<-ctx.Done()
			return approval.Answer{Decision: approval.DecisionAllow}, nil // too late
		}})
		begin := time.Now()
		r := s.round(use("tu_1", "shell", `{"command": "ls"}`))[0]
		if took := time.Since(begin); took != time.Second || !r.IsError {
			t.Errorf("took %v, result %+v", took, r)
		}
		s.wantEvents("tu_1",
			"tool.confirmation_requested {tool_name: shell, side_effects: execute, input_summary: ls, projected_modifications: []}",
			"tool.confirmation_resolved {decision: timeout, scope: once, by: timeout}",
			"tool.failed {error_class: confirmation_timeout}")
	})
}

// Test 8: six calls at a cap of four start in order.
func TestSpecification10_8ConcurrencyCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		s := newSpecification(t, given{more: []tools.Factory{stubbed("slow", tools.ClassRead, anything, func(_ context.Context, c *tools.Call) (tools.Output, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return tools.Output{Content: []tools.Block{{Text: c.ID}}, Success: true}, nil
		})}})
		var calls []tools.Call
		for i := range 6 {
			calls = append(calls, use(fmt.Sprintf("tu_%d", i), "slow", `{}`))
		}
		begin := time.Now()
		results := s.round(calls...)
		if took := time.Since(begin); took != 2*time.Second || most != 4 {
			t.Errorf("took %v with up to %d at once, want two rounds of a second with 4", took, most)
		}
		for i, r := range results {
			s.wantResult(r, calls[i].ID, false, calls[i].ID)
			s.wantEvents(calls[i].ID, "tool.called {tool_name: slow, side_effects: read}", "tool.completed {success: true, output_size_bytes: 4}")
		}
		var started []string
		for _, ev := range s.events {
			if c, ok := ev.(dispatch.Called); ok {
				started = append(started, c.CallID)
			}
		}
		if !slices.IsSorted(started) {
			t.Errorf("the calls started in the order %v", started)
		}
	})
}

// Tests 9 and 10: a cancel reaches the tool, and a tool that ignores it is given up
// after 30 s with a warning. Decided: cancel_event and cancel() are the context.
func TestSpecification10_9Cancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the turn was cancelled")
		release := make(chan struct{})
		var saw error
		s := newSpecification(t, given{more: []tools.Factory{
			stubbed("obeys", tools.ClassRead, anything, func(ctx context.Context, _ *tools.Call) (tools.Output, error) {
				<-ctx.Done()
				saw = context.Cause(ctx)
				return tools.Output{}, saw
			}),
			stubbed("deaf", tools.ClassRead, anything, func(context.Context, *tools.Call) (tools.Output, error) {
				<-release
				return tools.Output{Success: true}, nil
			}),
		}})
		go func() {
			time.Sleep(20 * time.Second)
			s.d.Cancel(cause)
		}()
		begin := time.Now()
		results := s.round(use("tu_1", "obeys", `{}`), use("tu_2", "deaf", `{}`))
		if took := time.Since(begin); took != 20*time.Second+dispatch.DefaultAbandon {
			t.Errorf("took %v, want 20 s and the 30 s until a tool is abandoned", took)
		}
		if !errors.Is(saw, cause) {
			t.Errorf("the tool saw %v", saw)
		}
		s.wantEvents("tu_1", "tool.called {tool_name: obeys, side_effects: read}", "tool.failed {error_class: cancelled}")
		s.wantEvents("tu_2", "tool.called {tool_name: deaf, side_effects: read}", "warning tool did not stop after it was cancelled; it was abandoned",
			"tool.failed {error_class: cancelled, reason: abandoned}")
		if !results[0].IsError || !results[1].IsError || s.logs.FilterLevelExact(zap.WarnLevel).Len() != 1 {
			t.Errorf("results %+v, warnings %v", results, s.logs.FilterLevelExact(zap.WarnLevel).All())
		}
		close(release)
		// A later round is not cancelled.
		s.write("f", "x")
		s.wantResult(s.round(use("tu_3", "read_file", `{"path": "f"}`))[0], "tu_3", false, "x")
	})
}

// Test 11: a tool's error is redacted for the model and complete in the log.
func TestSpecification10_11Exceptions(t *testing.T) {
	thrown := errors.New("connect to 10.0.0.5: password is hunter2")
	s := newSpecification(t, given{more: []tools.Factory{
		stubbed("fails", tools.ClassNone, anything, func(context.Context, *tools.Call) (tools.Output, error) { return tools.Output{}, thrown }),
		stubbed("panics", tools.ClassNone, anything, func(context.Context, *tools.Call) (tools.Output, error) { panic(thrown) }),
	}})
	for _, name := range []string{"fails", "panics"} {
		r := s.round(use("tu_"+name, name, `{}`))[0]
		f := s.failed("tu_" + name)
		s.wantEvents("tu_"+name, fmt.Sprintf("tool.called {tool_name: %s, side_effects: none}", name), "tool.failed {error_class: execution_error}")
		s.wantResult(r, "tu_"+name, true, "Tool execution failed (error id "+f.ErrorID+").")
		if strings.Contains(fmt.Sprintf("%+v", f), "hunter2") {
			t.Errorf("the event has what was thrown: %+v", f)
		}
		logged := s.logs.FilterField(zap.String("error_id", f.ErrorID)).All()
		if len(logged) != 1 || logged[0].Level != zap.ErrorLevel || !strings.Contains(fmt.Sprint(logged[0].ContextMap()), "hunter2") {
			t.Errorf("control: the log lacks what was thrown: %v", logged)
		}
		if name == "panics" && !strings.Contains(fmt.Sprint(logged[0].ContextMap()["stack"]), "specification_test.go") {
			t.Errorf("the log lacks the traceback: %v", logged[0].ContextMap()["stack"])
		}
	}
}

// Test 12 said that a tool may open files by itself, logged. Superseded: tools that
// write or execute must run in the container. e2e TestShellSeesNothingOfTheHost
// shows that it holds.
func TestSpecification10_12NothingRunsOnTheHost(t *testing.T) {
	s := newSpecification(t, given{})
	for _, class := range []tools.Class{tools.ClassWrite, tools.ClassExecute} {
		def := stubbed("raw", class, anything, nil)().Definition()
		s.must(s.d.Register(func() tools.Tool { return &stub{def: def} })) // the control
		s.d.Unregister("raw")
		def.Runs = tools.PlaceHost
		if err := s.d.Register(func() tools.Tool { return &stub{def: def} }); err == nil || !strings.Contains(err.Error(), "must run in the sandbox") {
			t.Errorf("a tool of class %s that runs on the host: %v", class, err)
		}
	}
}

// Test 13: a trusted workspace lowers the bar for writes; commands still ask.
func TestSpecification10_13TrustedWorkspace(t *testing.T) {
	s := newSpecification(t, given{})
	trusted := newSpecification(t, given{policy: func(p *policy.Policy) { p.RelaxedWorkspaces = []string{filepath.Join(s.root, "../../..")} }})
	for _, c := range []struct {
		s           *specification
		write, exec string
	}{
		{s, "permission_denied", "permission_denied"}, // the control: nobody to ask
		{trusted, "", "permission_denied"},
	} {
		results := c.s.round(use("tu_w", "write_file", `{"path": "f", "content": "x"}`), use("tu_x", "shell", `{"command": "ls"}`))
		if got := string(results[0].Class); got != c.write {
			t.Errorf("write_file ends with %q, want %q", got, c.write)
		}
		if got := string(results[1].Class); got != c.exec {
			t.Errorf("shell ends with %q, want %q", got, c.exec)
		}
	}
	trusted.wantEvents("tu_w", "tool.called {tool_name: write_file, side_effects: write}", `tool.completed {success: true, output_size_bytes: 19, files_modified: ["f"]}`)
}

// Test 14: the event's class is the declared one, even if a command only reads.
func TestSpecification10_14DeclaredClass(t *testing.T) {
	s := newSpecification(t, given{
		policy: func(p *policy.Policy) {
			for _, c := range []tools.Class{tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork} {
				p.Classes[c] = policy.ModeAuto
			}
		},
		more: []tools.Factory{stubbed("adds", tools.ClassNone, anything, nil), stubbed("sends", tools.ClassNetwork, anything, nil)},
	})
	s.write("f", "x")
	for i, c := range []struct{ tool, input, class string }{
		{"adds", `{}`, "none"},
		{"read_file", `{"path": "f"}`, "read"},
		{"list_dir", `{}`, "read"},
		{"patch_file", `{"path": "f", "old": "x", "new": "y"}`, "write"},
		{"write_file", `{"path": "f", "content": "x"}`, "write"},
		{"shell", `{"command": "cat f"}`, "execute"},
		{"sends", `{}`, "network"},
	} {
		id := fmt.Sprintf("tu_%d", i)
		s.round(use(id, c.tool, c.input))
		want := fmt.Sprintf("tool.called {tool_name: %s, side_effects: %s}", c.tool, c.class)
		if got := s.of(id); len(got) != 2 || got[0] != want {
			t.Errorf("%s: %q, want %q first", c.tool, got, want)
		}
		if def, ok := s.d.Lookup(c.tool); !ok || string(def.Class) != c.class {
			t.Errorf("%s is declared %q", c.tool, def.Class)
		}
	}
}
