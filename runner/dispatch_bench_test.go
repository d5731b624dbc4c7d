package runner

import (
	"context"
	"fmt"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

// nothing is a tool of class none that does nothing.
type nothing struct{}

func (*nothing) Definition() tools.Definition {
	return tools.Definition{
		Name: "nothing", Description: "Does nothing.", Class: tools.ClassNone, Runs: tools.PlaceHost, EnabledByDefault: true,
		InputSchema: []byte(`{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}}}`),
	}
}

func (*nothing) Execute(context.Context, *tools.Call) (tools.Output, error) {
	return tools.Output{Content: []tools.Block{{Text: "done"}}, Success: true}, nil
}

// BenchmarkDispatch measures a call through the dispatcher into the trace: two records,
// tool.called and tool.completed, unsynced, as for a call that changes nothing.
func BenchmarkDispatch(b *testing.B) {
	for _, calls := range []int{1, 4} {
		b.Run(fmt.Sprint(calls), func(b *testing.B) {
			rec, err := record.NewRecorder(record.RecorderOptions{Dir: b.TempDir(), Session: "ses_01JD0000000000000000000000"})
			if err != nil {
				b.Fatal(err)
			}
			defer rec.Close()
			policy, err := policy.Preset("default")
			if err != nil {
				b.Fatal(err)
			}
			d, err := dispatch.New(dispatch.Options{Policy: policy, Emit: newEventRecorder(rec, nil).toolEvent})
			if err != nil {
				b.Fatal(err)
			}
			if err := d.Register(func() tools.Tool { return new(nothing) }); err != nil {
				b.Fatal(err)
			}
			round := make([]tools.Call, calls)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				for i := range round {
					round[i] = tools.Call{ID: fmt.Sprintf("tu_%d_%d", n, i), Name: "nothing", Input: []byte(`{"path":"src/main.go","text":"some text"}`)}
				}
				if results, err := d.Round(context.Background(), round); err != nil || results[0].IsError {
					b.Fatal(err, results)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1000/float64(b.N*calls), "µs/call")
		})
	}
}
