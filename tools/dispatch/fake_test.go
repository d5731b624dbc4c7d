package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeTool is a tool made of parts that a test sets.
type fakeTool struct {
	def     tools.Definition
	execute func(ctx context.Context, call *tools.Call) (tools.Output, error)
	project func(ctx context.Context, call *tools.Call) (tools.Projection, error)
}

func (f *fakeTool) Definition() tools.Definition { return f.def }

func (f *fakeTool) Execute(ctx context.Context, call *tools.Call) (tools.Output, error) {
	if f.execute == nil {
		return textOutput("done"), nil
	}
	return f.execute(ctx, call)
}

// projectingTool is a fakeTool that is a [tools.Projector].
type projectingTool struct{ fakeTool }

func (p *projectingTool) Project(ctx context.Context, call *tools.Call) (tools.Projection, error) {
	return p.project(ctx, call)
}

func (f fakeTool) factory() tools.Factory {
	if f.project != nil {
		return func() tools.Tool { return &projectingTool{f} }
	}
	return func() tools.Tool { c := f; return &c }
}

func textOutput(text string) tools.Output {
	return tools.Output{Content: []tools.Block{{Text: text}}, Success: true}
}

// testDefinition returns a tool of a class, with an optional path, that everyone
// may use.
func testDefinition(name string, class tools.Class) tools.Definition {
	def := tools.Definition{
		Name: tools.Name(name), Description: "A tool of the tests.", Class: class, Runs: tools.PlaceHost, EnabledByDefault: true,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}}}`),
		Paths:       testPaths,
	}
	if class == tools.ClassWrite || class == tools.ClassExecute {
		def.Runs = tools.PlaceSandbox
	}
	return def
}

func testPaths(raw json.RawMessage) []string {
	var in struct{ Path string }
	if json.Unmarshal(raw, &in) != nil || in.Path == "" {
		return nil
	}
	return []string{in.Path}
}

// commandOfText takes the input's text for a command.
func commandOfText(raw json.RawMessage) []string {
	var in struct{ Text string }
	_ = json.Unmarshal(raw, &in)
	return []string{in.Text}
}

// recorder keeps every event, and can fail to.
type recorder struct {
	mu     sync.Mutex
	events []Event
	fail   func(Event) error
}

func (r *recorder) emit(ev Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		if err := r.fail(ev); err != nil {
			return err
		}
	}
	r.events = append(r.events, ev)
	return nil
}

func (r *recorder) all() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// of returns one call's events in a short form.
func (r *recorder) of(id string) []string {
	var list []string
	for _, ev := range r.all() {
		if owner, text := brief(ev); owner == id {
			list = append(list, text)
		}
	}
	return list
}

func brief(ev Event) (callID, text string) {
	switch ev := ev.(type) {
	case Called:
		return ev.CallID, "called " + string(ev.Class)
	case OutputDelta:
		return ev.CallID, "delta " + ev.Stream + " " + ev.Text
	case Completed:
		return ev.CallID, fmt.Sprintf("completed %t", ev.Success)
	case Failed:
		return ev.CallID, "failed " + string(ev.Class)
	case InputInvalid:
		return ev.CallID, "invalid"
	case ConfirmationRequested:
		return ev.Confirmation.CallID, "requested"
	case ConfirmationResolved:
		return ev.CallID, fmt.Sprintf("resolved %s by %s", ev.Decision, ev.By)
	case ConfirmationAttempted:
		return ev.CallID, "attempted"
	case Warning:
		return ev.CallID, "warning"
	}
	return "", fmt.Sprintf("%T", ev)
}

func find[E Event](r *recorder) []E {
	var list []E
	for _, ev := range r.all() {
		if e, ok := ev.(E); ok {
			list = append(list, e)
		}
	}
	return list
}

// terminalProblems requires exactly one terminal event for each call, followed by
// nothing but warnings and attempts.
func terminalProblems(r *recorder, calls []tools.Call) []string {
	var problems []string
	for _, call := range calls {
		ends := 0
		for _, ev := range r.all() {
			owner, text := brief(ev)
			if owner != call.ID || text == "warning" || text == "attempted" {
				continue
			}
			if ends > 0 {
				problems = append(problems, fmt.Sprintf("call %s: %q came after its terminal event", call.ID, text))
			}
			if isTerminal(ev) {
				ends++
			}
		}
		if ends != 1 {
			problems = append(problems, fmt.Sprintf("call %s has %d terminal events: %q", call.ID, ends, r.of(call.ID)))
		}
	}
	return problems
}

func checkTerminals(t testing.TB, r *recorder, calls []tools.Call) {
	t.Helper()
	for _, problem := range terminalProblems(r, calls) {
		t.Error(problem)
	}
}

// newDispatcher returns a dispatcher with tools, which the test closes.
func newDispatcher(t testing.TB, rec *recorder, opts Options, tools ...fakeTool) *Dispatcher {
	t.Helper()
	opts.Emit = rec.emit
	d, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		if err := d.Register(tool.factory()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func preset(t testing.TB, name string) policy.Policy {
	t.Helper()
	p, err := policy.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func call(id, name, input string) tools.Call {
	return tools.Call{ID: id, Name: tools.Name(name), Input: json.RawMessage(input)}
}

// roundOK runs calls. The round must not end the run.
func roundOK(t testing.TB, d *Dispatcher, calls ...tools.Call) []tools.Result {
	t.Helper()
	results, err := d.Round(context.Background(), calls)
	if err != nil {
		t.Fatalf("round ends the run: %v", err)
	}
	return results
}

func wantText(t testing.TB, r tools.Result, isError bool, text string) {
	t.Helper()
	if r.IsError != isError || blocksText(r.Content) != text {
		t.Errorf("call %s gives error %t with %q, want %t with %q", r.CallID, r.IsError, blocksText(r.Content), isError, text)
	}
}

func wantEvents(t testing.TB, r *recorder, id string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.of(id)); diff != "" {
		t.Errorf("events of %s (-want +got):\n%s", id, diff)
	}
}

type approver func(ctx context.Context, c approval.Confirmation) (approval.Answer, error)

func (a approver) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	return a(ctx, c)
}

// brokerOf returns a broker with one client, or nil if a is nil.
func brokerOf(a approval.Approver) *approval.Broker {
	if a == nil {
		return nil
	}
	b := approval.NewBroker(approval.BrokerOptions{})
	b.Attach("test", a)
	return b
}

func brokerFunc(a approver) *approval.Broker { return brokerOf(a) }

func answering(d approval.Decision, s approval.Scope) approver {
	return func(context.Context, approval.Confirmation) (approval.Answer, error) {
		return approval.Answer{Decision: d, Scope: s}, nil
	}
}
