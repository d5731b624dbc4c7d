package openai_test

import (
	"regexp"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

// TestTranscripts plays what other servers of Chat Completions send.
func TestTranscripts(t *testing.T) {
	end := regexp.MustCompile(`"finish_reason":"[a-z]`)
	a := wiretest.Adapter{
		New: func(t *testing.T, url string) loop.Model {
			m, err := openai.New(openai.Options{Model: "m", BaseURL: url + "/v1", APIKey: "test", Stream: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m
		},
		Done: `{"choices":[{"message":{"content":"Done."},"finish_reason":"stop"}]}`,
		End:  end.MatchString,
	}
	for _, name := range []string{"vllm", "openrouter", "llamacpp", "ollama-v1", "openai"} {
		t.Run(name, func(t *testing.T) { wiretest.TestFile(t, "../internal/wiretest/testdata/"+name+".txt", a) })
	}
}
