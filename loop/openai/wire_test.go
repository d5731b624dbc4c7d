package openai_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

func newAdapter(api openai.API, done string) wiretest.Adapter {
	return wiretest.Adapter{
		New: func(t *testing.T, url string, to wiretest.Timeouts) loop.Model {
			m, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: url + "/v1", APIKey: "test", HeaderTimeout: to.Header, IdleTimeout: to.Idle, AnswerTimeout: to.Answer}, API: api, Stream: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m
		},
		Done: done,
		End:  regexp.MustCompile(`"finish_reason":"[a-z]`).MatchString,
	}
}

func newChatAdapter() wiretest.Adapter {
	return newAdapter(openai.Chat, `{"choices":[{"message":{"content":"Done."},"finish_reason":"stop"}]}`)
}

func newResponsesAdapter() wiretest.Adapter {
	return newAdapter(openai.Responses, `{"status":"completed","output":[{"type":"message","content":[{"text":"Done."}]}]}`)
}

// TestTranscripts plays what Chat Completions servers send.
func TestTranscripts(t *testing.T) {
	for _, name := range []string{"vllm", "openrouter", "llamacpp", "ollama-v1", "openai"} {
		t.Run(name, func(t *testing.T) {
			wiretest.TestFile(t, "../internal/wiretest/testdata/"+name+".txt", newChatAdapter())
		})
	}
}

func TestRedirects(t *testing.T) {
	t.Run("chat", func(t *testing.T) { wiretest.TestRedirects(t, newChatAdapter()) })
	t.Run("responses", func(t *testing.T) { wiretest.TestRedirects(t, newResponsesAdapter()) })
}

func TestFloods(t *testing.T) {
	many := strings.Repeat("{},", 1_000_000) + "{}"
	t.Run("chat", func(t *testing.T) {
		wiretest.TestFloods(t, newChatAdapter(), "text/event-stream", func(i int) string {
			return fmt.Sprintf("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"%d\",\"function\":{}}]}}]}\n\n", i)
		}, `{"choices":[{"message":{"tool_calls":[`+many+`]}}]}`)
	})
	t.Run("responses", func(t *testing.T) {
		wiretest.TestFloods(t, newResponsesAdapter(), "text/event-stream", func(i int) string {
			return fmt.Sprintf("data: {\"type\":\"response.output_item.done\",\"item\":{\"id\":\"%d\",\"type\":\"function_call\"}}\n\n", i)
		}, `{"status":"completed","output":[`+many+`]}`)
	})
}

func TestSlow(t *testing.T) {
	t.Run("chat", func(t *testing.T) {
		wiretest.TestSlow(t, newChatAdapter(), "text/event-stream", `data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"shell","arguments":"{\"command\":"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"true\"}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: [DONE]

`)
	})
	t.Run("responses", func(t *testing.T) {
		wiretest.TestSlow(t, newResponsesAdapter(), "text/event-stream", `data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}

data: {"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"shell","arguments":"{\"command\":\"true\"}","status":"completed"}}

data: {"type":"response.completed","response":{"id":"resp_1","status":"completed","output":[]}}

`)
	})
}
