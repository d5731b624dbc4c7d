package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// countingTool counts its executions in a field, as a tool may.
type countingTool struct {
	def  tools.Definition
	runs int
}

func (c *countingTool) Definition() tools.Definition { return c.def }

func (c *countingTool) Execute(context.Context, *tools.Call) (tools.Output, error) {
	c.runs++
	return textOutput(fmt.Sprint(c.runs)), nil
}

// TestEveryCallHasAnInstanceOfItsOwn: each call finds the tool's fields as the
// factory made them, within a round and in later ones. The control uses one
// instance twice.
func TestEveryCallHasAnInstanceOfItsOwn(t *testing.T) {
	factory := func() tools.Tool { return &countingTool{def: testDefinition("count", tools.ClassRead)} }
	d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "sandboxed")})
	if err := d.Register(factory); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, r := range roundOK(t, d, call("a", "count", `{}`), call("b", "count", `{}`)) {
			wantText(t, r, false, "1")
		}
	}
	one := factory()
	for _, want := range []string{"1", "2"} {
		if out, err := one.Execute(t.Context(), &tools.Call{}); err != nil || blocksText(out.Content) != want {
			t.Errorf("control: %q, %v, want %s", blocksText(out.Content), err, want)
		}
	}
}

// TestConfirmationWaitsFiveMinutes fixes the default in minutes, not by its name.
// The control is another timeout.
func TestConfirmationWaitsFiveMinutes(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 5 * time.Minute, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, &recorder{}, Options{
				Policy: preset(t, "strict"), Broker: approval.NewBroker(approval.BrokerOptions{Attended: true}), ConfirmTimeout: given,
			}, fakeTool{def: testDefinition("shell", tools.ClassExecute)})
			begun := time.Now()
			r := roundOK(t, d, call("a", "shell", `{}`))[0]
			wantText(t, r, true, fmt.Sprintf("No one confirmed this operation within %v.", want))
			if took := time.Since(begun); took != want || r.Class != tools.ErrorConfirmationTimeout {
				t.Errorf("with a timeout of %v the question ended as %s after %v, want %v", given, r.Class, took, want)
			}
		})
	}
}

// TestAbandonedCallsAreReported: OnAbandon gets the call and the tool of a call
// that does not end. The control ends in time.
func TestAbandonedCallsAreReported(t *testing.T) {
	for name, want := range map[string]int{"deaf": 1, "obedient": 0} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var told []string
			over := make(chan struct{})
			tool := fakeTool{def: testDefinition("shell", tools.ClassExecute), execute: func(ctx context.Context, _ *tools.Call) (tools.Output, error) {
				<-ctx.Done()
				if name == "deaf" {
					<-over
				}
				return tools.Output{}, context.Cause(ctx)
			}}
			d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "sandboxed"), OnAbandon: func(id string, def tools.Definition) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, id+" "+string(def.Name))
				close(over)
			}}, tool)
			roundOK(t, d, call("a", "shell", `{}`))
			mu.Lock()
			defer mu.Unlock()
			if len(told) != want || want > 0 && told[0] != "a shell" {
				t.Errorf("%s: told of %q, want %d", name, told, want)
			}
		})
	}
}

// TestTypedTextIsJudgedAgain: two inputs of one answer are a dangerous command only
// together. Nobody was asked about it, so the second fails. The control is the same
// without a pattern.
func TestTypedTextIsJudgedAgain(t *testing.T) {
	for _, dangerous := range []bool{true, false} {
		typed := ""
		def := testDefinition("typing", tools.ClassExecute)
		def.Typed, def.InOrder = true, true
		def.Commands = func(raw json.RawMessage) []string { return append(commandOfText(raw), typed+commandOfText(raw)[0]) }
		tool := fakeTool{def: def, execute: func(_ context.Context, call *tools.Call) (tools.Output, error) {
			typed += commandOfText(call.Input)[0]
			return textOutput("typed"), nil
		}}
		p := policy.Policy{Classes: map[tools.Class]policy.Mode{tools.ClassExecute: policy.ModeAuto}}
		if dangerous {
			p.Dangerous = []string{"shutdown"}
		}
		d, err := New(Options{Policy: p, Broker: approval.NewBroker(approval.BrokerOptions{}), Emit: (&recorder{}).emit})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Register(tool.factory()); err != nil {
			t.Fatal(err)
		}
		got, err := d.Round(t.Context(), []tools.Call{
			{ID: "tu_1", Name: "typing", Input: json.RawMessage(`{"text":"shut"}`)}, {ID: "tu_2", Name: "typing", Input: json.RawMessage(`{"text":"down"}`)},
		})
		if err != nil || got[0].IsError || got[1].IsError != dangerous || (typed == "shut") != dangerous {
			t.Errorf("dangerous %t: typed %q, %+v, %v", dangerous, typed, got, err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
