package loop

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type scriptModel struct {
	respond  func(n int, req Request, onDelta func(Delta)) (Response, error)
	requests []Request
	// charged is set for a model whose requests need a reservation.
	charged bool
}

func (m *scriptModel) Complete(_ context.Context, req Request, onDelta func(Delta)) (Response, error) {
	m.requests = append(m.requests, req)
	return m.respond(len(m.requests), req, onDelta)
}

func (m *scriptModel) Info() ModelInfo {
	return ModelInfo{Provider: "fake", Model: "script", Recorded: !m.charged}
}

func playResponses(responses ...Response) *scriptModel {
	return &scriptModel{respond: func(n int, _ Request, onDelta func(Delta)) (Response, error) {
		r := responses[min(n, len(responses))-1]
		if text := r.Message.joinedText(); text != "" {
			onDelta(Delta{Text: text})
		}
		return r, nil
	}}
}

func textResponse(text string) Response {
	return Response{Message: NewText(RoleAssistant, boundary.Text(text))}
}

func callsResponse(specs ...string) Response {
	m := Message{Role: RoleAssistant}
	for i, s := range specs {
		name, raw, _ := strings.Cut(s, " ")
		m.Blocks = append(m.Blocks, Block{ToolUse: &ToolUse{
			ProviderID: fmt.Sprintf("call_%d_%s", i, name), Name: tools.Name(name), Raw: raw,
		}})
	}
	return Response{Message: m}
}

func withUsage(r Response, tokens int64, micro *int64) Response {
	r.Usage.InputTokens, r.Usage.CostMicroUSD = tokens, micro
	return r
}

// fakeDispatcher runs calls with a function. Like a dispatcher, it returns one result
// per call, in order, and refuses malformed input.
type fakeDispatcher struct {
	names []tools.Name
	run   func(ctx context.Context, c tools.Call) (string, error)
	ran   []tools.Call
	err   error
}

func (f *fakeDispatcher) Definitions() []tools.Definition {
	var out []tools.Definition
	for _, n := range f.names {
		out = append(out, tools.Definition{Name: n, InputSchema: []byte(`{"type":"object"}`)})
	}
	return out
}

func (f *fakeDispatcher) Round(ctx context.Context, all []tools.Call) ([]tools.Result, error) {
	out := make([]tools.Result, 0, len(all))
	for _, c := range all {
		r := tools.Result{CallID: c.ID, Name: c.Name}
		if c.InputError != "" {
			r.IsError, r.Content = true, []tools.Block{{Text: c.InputError}}
			out = append(out, r)
			continue
		}
		f.ran = append(f.ran, c)
		text := "ok"
		if f.run != nil {
			var err error
			if text, err = f.run(ctx, c); err != nil {
				r.IsError, text = true, err.Error()
			}
		}
		r.Content = []tools.Block{{Text: text}}
		out = append(out, r)
	}
	return out, f.err
}

func newCountingIDs() func(string) string {
	n := 0
	return func(prefix string) string {
		n++
		return fmt.Sprintf("%s_%03d", prefix, n)
	}
}

func newTestOptions(m Model, d dispatcher) Options {
	return Options{
		Profiles: []Profile{{Model: m}}, Dispatcher: d, System: "You are a test.", Messages: []Message{NewText(RoleUser, "Do it.")},
		Session: "ses_1", Turn: "trn_1", NewID: newCountingIDs(),
	}
}

// runTurn runs a turn with valid options and checks what holds for every turn.
func runTurn(t *testing.T, ctx context.Context, o Options) (Outcome, []Event) {
	t.Helper()
	var events []Event
	emit := o.Emit
	o.Emit = func(e Event) error {
		events = append(events, e)
		if emit != nil {
			return emit(e)
		}
		return nil
	}
	out, err := Run(ctx, o)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	checkHistory(t, out.History)
	checkEvents(t, out, events)
	return out, events
}

// checkHistory checks that each call has exactly one result, in order after its
// message, and that IDs are unique.
func checkHistory(t *testing.T, history []Message) {
	t.Helper()
	seen := map[string]bool{}
	var open []ToolUse
	for i, m := range history {
		if m.Role == RoleTool {
			if len(m.Blocks) != 1 || m.Blocks[0].ToolResult == nil {
				t.Fatalf("message %d: want one result, got %+v", i, m.Blocks)
			}
			if len(open) == 0 || m.Blocks[0].ToolResult.ToolUseID != open[0].ID {
				t.Fatalf("message %d: result for %s, want one for %v", i, m.Blocks[0].ToolResult.ToolUseID, open)
			}
			open = open[1:]
			continue
		}
		if len(open) > 0 {
			t.Fatalf("message %d: calls without a result: %v", i, open)
		}
		for _, u := range m.toolUses() {
			if u.ID == "" || seen[u.ID] || seen[u.WireID()] {
				t.Fatalf("message %d: id %q (%q) is empty or used twice", i, u.ID, u.ProviderID)
			}
			seen[u.ID], seen[u.WireID()] = true, true
			if u.Input == nil {
				t.Fatalf("message %d: call without input", i)
			}
			open = append(open, u)
		}
	}
	if len(open) > 0 {
		t.Fatalf("calls without a result at the end: %v", open)
	}
}

// checkEvents checks that the turn's first and last events are right, and that each
// started model call ends.
func checkEvents(t *testing.T, out Outcome, events []Event) {
	t.Helper()
	if _, ok := events[0].(TurnStarted); !ok {
		t.Fatalf("first event is %T", events[0])
	}
	if out.Reason == StopTraceUnwritable {
		return
	}
	ended, ok := events[len(events)-1].(TurnEnded)
	if !ok || ended.Reason != out.Reason {
		t.Fatalf("last event is %+v, want the end by %s", events[len(events)-1], out.Reason)
	}
	started := 0
	for _, e := range events {
		switch e.(type) {
		case ModelCallStarted:
			started++
		case ModelCallCompleted, ModelCallFailed:
			started--
		}
		if started < 0 || started > 1 {
			t.Fatal("model calls overlap")
		}
	}
	if started != 0 {
		t.Fatal("a model call has no end")
	}
}

func addedMessages(events []Event) []Message {
	var out []Message
	for _, e := range events {
		if m, ok := e.(MessageAdded); ok {
			out = append(out, m.Message)
		}
	}
	return out
}
