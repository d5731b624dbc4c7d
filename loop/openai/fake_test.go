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

// endpoint is a server that answers with a function and records its requests.
type endpoint struct{ *wiretest.Endpoint }

// newEndpoint starts an endpoint. The parameter n of answer counts requests from 1.
func newEndpoint(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *endpoint {
	t.Helper()
	return &endpoint{wiretest.NewEndpoint(t, "/v1/chat/completions", answer)}
}

// newModel returns a model of the endpoint.
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

// enableStream sets o.Stream.
func enableStream(o *openai.Options) { o.Stream = true }

// respondEvents sends each piece unchanged as one server-sent event.
func respondEvents(pieces ...string) func(int, http.ResponseWriter, *http.Request) {
	return wiretest.RespondPieces("text/event-stream", "\n\n", pieces...)
}

// dataEvents returns an event for each JSON value.
func dataEvents(values ...string) []string {
	out := make([]string, 0, len(values))
	for _, v := range values {
		out = append(out, "data: "+v)
	}
	return out
}

// deltaChunk returns a chunk with a delta, as JSON.
func deltaChunk(d string) string {
	return `{"id":"c1","model":"m-1","choices":[{"index":0,"delta":` + d + `}]}`
}

// finishChunk returns a chunk with a finish reason, as JSON.
func finishChunk(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}
