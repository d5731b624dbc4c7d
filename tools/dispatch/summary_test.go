package dispatch

import (
	"encoding/json"
	"testing"

	"github.com/caisson-run/caisson/tools"
)

func TestSummary(t *testing.T) {
	paths := func(list ...string) func(json.RawMessage) []string {
		return func(json.RawMessage) []string { return list }
	}
	say := func(text string) func(json.RawMessage) string { return func(json.RawMessage) string { return text } }
	for want, def := range map[string]tools.Definition{
		`{"a":1}`:  {},
		`{"a":1} `: {Paths: paths()},
		"p":        {Paths: paths("p", "q")},
		"said":     {Summary: say("said"), Paths: paths("p")},
		`a\nb`:     {Summary: say("a\nb")},
		` {"a":1}`: {Summary: say(""), Paths: paths("p")},
	} {
		input := `{"a":1}`
		if len(want) == len(input)+1 {
			input = want
		}
		if got := summaryLine(def, json.RawMessage(input)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
