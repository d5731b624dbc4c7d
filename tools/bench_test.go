package tools

import (
	"context"
	"testing"
)

// BenchmarkRound measures what the dispatcher adds to a call: the tool does
// nothing. The target is 50 µs a call.
func BenchmarkRound(b *testing.B) {
	for _, bm := range []struct {
		name  string
		calls int
	}{{"one call", 1}, {"four calls", 4}} {
		b.Run(bm.name, func(b *testing.B) {
			d := newDispatcher(b, &recorder{fail: func(Event) error { return nil }}, Options{Policy: preset(b, "default")}, readTool("read_file", nil))
			d.out.sink = func(Event) error { return nil }
			calls := make([]Call, bm.calls)
			for i := range calls {
				calls[i] = call("a", "read_file", `{"path":"src/main.go","text":"some text"}`)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Round(context.Background(), calls); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*bm.calls), "µs/call")
		})
	}
}
