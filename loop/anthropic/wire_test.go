package anthropic_test

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/anthropic"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
)

// TestTranscripts plays what Anthropic's server sends.
func TestTranscripts(t *testing.T) {
	wiretest.TestFile(t, "../internal/wiretest/testdata/anthropic.txt", wiretest.Adapter{
		New: func(t *testing.T, url string) loop.Model {
			m, err := anthropic.New(anthropic.Options{Model: "m", BaseURL: url, APIKey: "test"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m
		},
		Done: `{"type":"message","role":"assistant","content":[{"type":"text","text":"Done."}],"stop_reason":"end_turn"}`,
		End:  func(body string) bool { return strings.Contains(body, `"stop_reason":"tool_use"`) },
	})
}
