package openai_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type endpoint struct{ *wiretest.Endpoint }

func newEndpoint(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *endpoint {
	t.Helper()
	return &endpoint{wiretest.NewEndpoint(t, "/v1/chat/completions", answer)}
}

func (e *endpoint) newModel(t *testing.T, change func(*openai.Options)) *openai.Model {
	t.Helper()
	o := openai.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: e.URL + "/v1", APIKey: "sk-secret-key"}}
	if change != nil {
		change(&o)
	}
	m, err := openai.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func enableStream(o *openai.Options) { o.Stream = true }

func respondEvents(pieces ...string) func(int, http.ResponseWriter, *http.Request) {
	return wiretest.RespondPieces("text/event-stream", "\n\n", pieces...)
}

func dataEvents(values ...string) []string {
	out := make([]string, 0, len(values))
	for _, v := range values {
		out = append(out, "data: "+v)
	}
	return out
}

func deltaChunk(d string) string {
	return `{"id":"c1","model":"m-1","choices":[{"index":0,"delta":` + d + `}]}`
}

func finishChunk(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}
