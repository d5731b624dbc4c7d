package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// BenchmarkRound measures what the dispatcher adds to a call of a tool that does
// nothing, with a schema, a path and a policy to check. The target is 50 µs a call.
func BenchmarkRound(b *testing.B) {
	for _, bm := range []struct {
		name  string
		calls int
		class tools.Class
		paths bool
	}{
		{"none/1", 1, tools.ClassNone, false},
		{"read/1", 1, tools.ClassRead, true},
		{"write/1", 1, tools.ClassWrite, true},
		{"none/4", 4, tools.ClassNone, false},
		{"read/4", 4, tools.ClassRead, true},
		{"write/4", 4, tools.ClassWrite, true}, // on paths of their own
		{"read/64", 64, tools.ClassRead, true},
	} {
		b.Run(bm.name, func(b *testing.B) {
			tool := fakeTool{def: testDefinition("probe", bm.class)}
			if !bm.paths {
				tool.def.Paths = nil
			}
			d := newDispatcher(b, &recorder{}, Options{Policy: preset(b, "sandboxed"), Workspace: "/home/me/project"}, tool)
			d.out.sink = func(Event) error { return nil }
			calls := make([]tools.Call, bm.calls)
			for i := range calls {
				calls[i] = call(fmt.Sprint(i), "probe", fmt.Sprintf(`{"path":"src/main%d.go","text":"some text"}`, i))
			}
			runRounds(b, d, calls)
		})
	}
}

// BenchmarkApprovedRound is a call that a client of the broker allows at once.
func BenchmarkApprovedRound(b *testing.B) {
	d := newDispatcher(b, &recorder{}, Options{Policy: preset(b, "default"), Broker: brokerOf(answering(approval.DecisionAllow, approval.ScopeOnce))},
		fakeTool{def: testDefinition("probe", tools.ClassExecute)})
	d.out.sink = func(Event) error { return nil }
	runRounds(b, d, []tools.Call{call("a", "probe", `{"text":"some text"}`)})
}

// runRounds reports the median time of a round per call.
func runRounds(b *testing.B, d *Dispatcher, calls []tools.Call) {
	b.Helper()
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		results, err := d.Round(context.Background(), calls)
		took = append(took, time.Since(start))
		if err = errors.Join(err, failures(results)); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/float64(len(calls)), "p50-ns")
}

func failures(results []tools.Result) error {
	for _, r := range results {
		if r.IsError {
			return fmt.Errorf("call %s: %s", r.CallID, blocksText(r.Content))
		}
	}
	return nil
}
