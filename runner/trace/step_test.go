package trace

import (
	"encoding/json"
	"testing"

	"github.com/caisson-run/caisson/runner"
)

// TestStepsKnowEveryKind: a kind that is added to the catalogue is told, or is
// left out on purpose.
func TestStepsKnowEveryKind(t *testing.T) {
	var unknown []string
	steps := NewSteps(func(s Step) {
		if s.Kind == StepUnknown {
			unknown = append(unknown, s.Text)
		}
	})
	for i, p := range runner.Payloads() {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		steps.Record(runner.Record{Seq: int64(i + 1), Kind: p.Kind(), Payload: raw})
	}
	steps.Record(runner.Record{Seq: 1000, Kind: "some.other", Payload: []byte("{}")})
	steps.Record(runner.Record{Seq: 1001, Kind: runner.KindMessage, Payload: []byte(`{"blocks":7}`)})
	if len(unknown) != 2 || unknown[0] != "some.other" || unknown[1] != "message" {
		t.Errorf("not known: %q, want some.other and message, whose payload is none", unknown)
	}
}
