package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// endpoint is a server that answers with a function and records its requests.
type endpoint struct {
	*httptest.Server
	mu      sync.Mutex
	bodies  []map[string]any
	path    string
	headers []http.Header
}

// newEndpoint starts an endpoint. The parameter n of answer counts requests from 1.
func newEndpoint(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *endpoint {
	t.Helper()
	e := &endpoint{path: "/v1/chat/completions"}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("request: %v", err)
		}
		var body map[string]any
		if err := json.Unmarshal(data, &body); err != nil {
			t.Errorf("request is not JSON: %v", err)
		}
		e.mu.Lock()
		e.bodies, e.headers = append(e.bodies, body), append(e.headers, r.Header)
		n := len(e.bodies)
		e.mu.Unlock()
		if r.URL.Path != e.path {
			t.Errorf("path %s", r.URL.Path)
		}
		answer(n, w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

// countRequests returns the number of requests received.
func (e *endpoint) countRequests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.bodies)
}

// newModel returns a model of the endpoint.
func (e *endpoint) newModel(t *testing.T, change func(*openai.Options)) *openai.Model {
	t.Helper()
	o := openai.Options{Model: "m", BaseURL: e.URL + "/v1", APIKey: "sk-secret-key"}
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
	return func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range pieces {
			_, _ = fmt.Fprint(w, p, "\n\n")
			w.(http.Flusher).Flush()
		}
	}
}

// dataEvents returns an event for each JSON value.
func dataEvents(values ...string) []string {
	out := make([]string, 0, len(values))
	for _, v := range values {
		out = append(out, "data: "+v)
	}
	return out
}

// respondJSON sends one JSON value.
func respondJSON(status int, body string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// deltaChunk returns a chunk with a delta, as JSON.
func deltaChunk(d string) string {
	return `{"id":"c1","model":"m-1","choices":[{"index":0,"delta":` + d + `}]}`
}

// finishChunk returns a chunk with a finish reason, as JSON.
func finishChunk(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

// newRequest returns an ordinary request.
func newRequest() loop.Request {
	return loop.Request{
		Messages: []loop.Message{loop.NewText(loop.RoleUser, "Do it.")},
		Tools:    []tools.Definition{{Name: "shell", Description: "Runs.", InputSchema: []byte(`{"type":"object"}`)}},
	}
}

// callModel makes one call with a deadline; text is the text of the deltas.
func callModel(t *testing.T, m *openai.Model, req loop.Request) (resp loop.Response, text string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, fmt.Errorf("test takes too long"))
	defer cancel()
	var b strings.Builder
	resp, err = m.Complete(ctx, req, func(d loop.Delta) { b.WriteString(d.Text) })
	return resp, b.String(), err
}

// summarize returns an answer in one line, with each call as name(id)arguments.
func summarize(r loop.Response) string {
	var parts []string
	for _, b := range r.Message.Blocks {
		switch {
		case b.Thinking != nil:
			parts = append(parts, "thinking:"+b.Thinking.Text)
		case b.Text != nil:
			parts = append(parts, "text:"+b.Text.Text)
		case b.ToolUse != nil:
			parts = append(parts, fmt.Sprintf("%s(%s)%s", b.ToolUse.Name, b.ToolUse.ProviderID, b.ToolUse.Raw))
		}
	}
	if r.Truncated {
		parts = append(parts, "cut")
	}
	return strings.Join(parts, " | ")
}
