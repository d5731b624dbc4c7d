package loop

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

// probeTool is a tool that counts its concurrent calls.
type probeTool struct {
	running, peak, ran *atomic.Int64
	full               chan struct{}
}

func (probeTool) Definition() tools.Definition {
	return tools.Definition{
		Name: "probe", Description: "Probes.", Class: tools.ClassNone, Runs: tools.PlaceHost, EnabledByDefault: true,
		InputSchema: []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":false}`),
	}
}

func (p *probeTool) Execute(ctx context.Context, _ *tools.Call) (tools.Output, error) {
	n := p.running.Add(1)
	defer p.running.Add(-1)
	for most := p.peak.Load(); n > most && !p.peak.CompareAndSwap(most, n); most = p.peak.Load() {
	}
	if n == dispatch.DefaultConcurrency {
		select { // all slots are taken
		case p.full <- struct{}{}:
		default:
		}
	}
	select {
	case <-p.full:
		select {
		case p.full <- struct{}{}:
		default:
		}
	case <-ctx.Done():
	}
	p.ran.Add(1)
	return tools.Output{Content: []tools.Block{{Text: "probed"}}, Success: true}, nil
}

// TestToolCallConfusion is acceptance case 50 with the real dispatcher: each call,
// valid or not, has one typed result, and parallelism is bounded.
func TestToolCallConfusion(t *testing.T) {
	policy, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	terminal := map[string]int{}
	d, err := dispatch.New(dispatch.Options{Policy: policy, Emit: func(e dispatch.Event) error {
		switch e := e.(type) {
		case dispatch.Completed:
			terminal[e.CallID]++
		case dispatch.Failed:
			terminal[e.CallID]++
		case dispatch.InputInvalid:
			terminal[e.CallID]++
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(context.WithoutCancel(t.Context())) }()
	var running, most, ran atomic.Int64
	gate := make(chan struct{}, 1)
	if err := d.Register(func() tools.Tool {
		return &probeTool{running: &running, peak: &most, ran: &ran, full: gate}
	}); err != nil {
		t.Fatal(err)
	}

	odd := []string{
		`nope {}`, `Probe {}`, `probe2 {}`, `a/b {}`, `a__b {}`, ` {}`, "pro\x00be {}",
		`probe {"n":`, `probe {"n":"x"}`, `probe {"m":1}`, `probe [1]`, `probe "{\"n\":`, "probe " + strings.Repeat(`{"n":`, 1e5),
	}
	many := make([]string, 0, 200)
	for range 200 {
		many = append(many, `probe {"n":1}`)
	}
	double := callsResponse(`probe {"n":2}`, `probe {"n":3}`, `probe `)
	for _, b := range double.Message.Blocks {
		b.ToolUse.ProviderID = "same"
	}
	model := playResponses(callsResponse(odd...), callsResponse(many...), double, textResponse(`<tool_call>{"name":"probe"}</tool_call>`))
	o := newTestOptions(model, d)
	o.NewID = nil
	out, _ := runTurn(t, t.Context(), o)

	if out.Reason != StopAnswered || !strings.HasPrefix(out.Answer, "<tool_call>") {
		t.Fatalf("reason %s, answer %q, %v", out.Reason, out.Answer, out.Err)
	}
	if got := ran.Load(); got != 203 {
		t.Errorf("%d probes ran, want the 203 valid ones", got)
	}
	if got := most.Load(); got != dispatch.DefaultConcurrency {
		t.Errorf("%d ran at once, want %d", got, dispatch.DefaultConcurrency)
	}
	bad := 0
	for _, m := range out.History {
		for _, u := range m.toolUses() {
			if terminal[u.ID] != 1 {
				t.Errorf("call %s (%s) has %d terminal events", u.ID, u.Name, terminal[u.ID])
			}
		}
		if m.Role == RoleTool && m.Blocks[0].ToolResult.IsError {
			bad++
		}
	}
	if bad != len(odd) {
		t.Errorf("%d error results, want %d", bad, len(odd))
	}
	if diff := cmp.Diff(int64(len(odd)+3+200), out.Usage.ToolCalls); diff != "" {
		t.Errorf("tool calls (-want +got):\n%s", diff)
	}
}

// TestEndlessLoop checks that limits end a turn whose model never stops.
func TestEndlessLoop(t *testing.T) {
	n := 0
	model := &scriptModel{respond: func(int, Request, func(Delta)) (Response, error) {
		n++
		return callsResponse(`shell {"n":`+strings.Repeat("1", n)+`}`, `shell {}`), nil
	}}
	o := newTestOptions(model, &fakeDispatcher{names: []tools.Name{"shell"}})
	o.Budget.Rounds, o.Budget.ToolCalls = new(int64(50)), new(int64(70))
	out, _ := runTurn(t, t.Context(), o)
	if out.Reason != StopLimit || out.Usage.ToolCalls != 70 || len(model.requests) != 37 {
		t.Errorf("reason %s (%v), %d calls, %d requests", out.Reason, out.Limit, out.Usage.ToolCalls, len(model.requests))
	}
}

// TestCancelWithTheRealDispatcher checks that cancellation stops the tool and that
// its call has a result.
func TestCancelWithTheRealDispatcher(t *testing.T) {
	policy, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	d, err := dispatch.New(dispatch.Options{Policy: policy, Emit: func(e dispatch.Event) error {
		if _, ok := e.(dispatch.Called); ok {
			cancel(why)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(context.WithoutCancel(t.Context())) }()
	var running, most, ran atomic.Int64
	if err := d.Register(func() tools.Tool {
		return &probeTool{running: &running, peak: &most, ran: &ran, full: make(chan struct{})}
	}); err != nil {
		t.Fatal(err)
	}
	model := playResponses(callsResponse("probe {}", "probe {}"))
	out, _ := runTurn(t, ctx, newTestOptions(model, d))
	if out.Reason != StopCancelled || !errors.Is(out.Err, why) || len(model.requests) != 1 || running.Load() != 0 {
		t.Errorf("reason %s, %v; requests %d, running %d", out.Reason, out.Err, len(model.requests), running.Load())
	}
}
