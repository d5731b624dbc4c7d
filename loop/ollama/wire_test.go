package ollama_test

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/ollama"
)

// TestTranscripts plays what Ollama's servers send.
func TestTranscripts(t *testing.T) {
	wiretest.TestFile(t, "../internal/wiretest/testdata/ollama.txt", wiretest.Adapter{
		New: func(t *testing.T, url string) loop.Model {
			m, err := ollama.New(ollama.Options{Model: "m", BaseURL: url, Stream: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			return m
		},
		Done: `{"message":{"content":"Done."},"done":true}`,
		End:  func(body string) bool { return strings.Contains(body, `"done":true`) },
	})
}
