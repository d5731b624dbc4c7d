package anthropic_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/anthropic"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
)

func newAdapter() wiretest.Adapter {
	return wiretest.Adapter{
		New: func(t *testing.T, url string, to wiretest.Timeouts) loop.Model {
			m, err := anthropic.New(anthropic.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: url, APIKey: "test", HeaderTimeout: to.Header, IdleTimeout: to.Idle, AnswerTimeout: to.Answer}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m
		},
		Done: `{"type":"message","role":"assistant","content":[{"type":"text","text":"Done."}],"stop_reason":"end_turn"}`,
		End:  func(body string) bool { return strings.Contains(body, `"stop_reason":"tool_use"`) },
	}
}

func TestTranscripts(t *testing.T) {
	wiretest.TestFile(t, "../internal/wiretest/testdata/anthropic.txt", newAdapter())
}

func TestRedirects(t *testing.T) { wiretest.TestRedirects(t, newAdapter()) }

func TestFloods(t *testing.T) {
	wiretest.TestFloods(t, newAdapter(), "text/event-stream", func(i int) string {
		return fmt.Sprintf("data: {\"type\":\"content_block_start\",\"index\":%d,\"content_block\":{\"type\":\"tool_use\",\"name\":\"x\"}}\n\n", i)
	}, `{"type":"message","stop_reason":"tool_use","content":[`+strings.Repeat("{},", 1_000_000)+`{}]}`)
}

func TestSlow(t *testing.T) {
	wiretest.TestSlow(t, newAdapter(), "text/event-stream", `data: {"type":"message_start","message":{"role":"assistant","content":[]}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"shell","input":{}}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"command\":\"true\"}"}}

data: {"type":"content_block_stop","index":0}

data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}

data: {"type":"message_stop"}

`)
}
