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

// newAdapter returns the adapter under test.
func newAdapter(api openai.API, done string) wiretest.Adapter {
	return wiretest.Adapter{
		New: func(t *testing.T, url string) loop.Model {
			m, err := openai.New(openai.Options{Model: "m", API: api, BaseURL: url + "/v1", APIKey: "test", Stream: true})
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

// newChatAdapter returns the adapter of Chat Completions.
func newChatAdapter() wiretest.Adapter {
	return newAdapter(openai.Chat, `{"choices":[{"message":{"content":"Done."},"finish_reason":"stop"}]}`)
}

// newResponsesAdapter returns the adapter of the Responses API.
func newResponsesAdapter() wiretest.Adapter {
	return newAdapter(openai.Responses, `{"status":"completed","output":[{"type":"message","content":[{"text":"Done."}]}]}`)
}

// TestTranscripts plays what other servers of Chat Completions send.
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
