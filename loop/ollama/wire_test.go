package ollama_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/ollama"
)

func newAdapter() wiretest.Adapter {
	return wiretest.Adapter{
		New: func(t *testing.T, url string, to wiretest.Timeouts) loop.Model {
			m, err := ollama.New(ollama.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: url, HeaderTimeout: to.Header, IdleTimeout: to.Idle, AnswerTimeout: to.Answer}, Stream: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m
		},
		Done: `{"message":{"content":"Done."},"done":true}`,
		End:  func(body string) bool { return strings.Contains(body, `"done":true`) },
	}
}

func TestTranscripts(t *testing.T) {
	wiretest.TestFile(t, "../internal/wiretest/testdata/ollama.txt", newAdapter())
}

func TestRedirects(t *testing.T) { wiretest.TestRedirects(t, newAdapter()) }

func TestFloods(t *testing.T) {
	wiretest.TestFloods(t, newAdapter(), "application/x-ndjson", func(i int) string {
		return fmt.Sprintf("{\"message\":{\"tool_calls\":[{\"id\":\"%d\",\"function\":{\"name\":\"x\"}}]}}\n", i)
	}, `{"done":true,"message":{"tool_calls":[`+strings.Repeat("{},", 1_000_000)+`{}]}}`)
}

func TestSlow(t *testing.T) {
	wiretest.TestSlow(t, newAdapter(), "application/x-ndjson", `{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"shell","arguments":{"command":"true"}}}]},"done":false}
{"message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"prompt_eval_count":100,"eval_count":10}
`)
}
