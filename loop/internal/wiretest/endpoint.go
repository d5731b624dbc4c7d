package wiretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools"
)

// Endpoint is a server that records its requests.
type Endpoint struct {
	*httptest.Server
	// Path is the only valid path.
	Path string

	mu       sync.Mutex
	requests []ReceivedRequest
}

// ReceivedRequest is a request to an [Endpoint].
type ReceivedRequest struct {
	Header http.Header
	Text   string
	Body   map[string]any
}

// NewEndpoint starts an endpoint. answer's n counts requests from 1.
func NewEndpoint(t *testing.T, path string, answer func(n int, w http.ResponseWriter, r *http.Request)) *Endpoint {
	t.Helper()
	e := &Endpoint{Path: path}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != e.Path || r.Method != http.MethodPost {
			t.Errorf("request %s %s: %v", r.Method, r.URL.Path, err)
		}
		received := ReceivedRequest{Header: r.Header, Text: string(text)}
		if err := json.Unmarshal(text, &received.Body); err != nil {
			t.Errorf("request is not JSON: %v", err)
		}
		e.mu.Lock()
		e.requests = append(e.requests, received)
		n := len(e.requests)
		e.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

// Requests returns the received requests.
func (e *Endpoint) Requests() []ReceivedRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.requests
}

// Request returns request i, from 0.
func (e *Endpoint) Request(t *testing.T, i int) ReceivedRequest {
	t.Helper()
	all := e.Requests()
	if i >= len(all) {
		t.Fatalf("%d requests", len(all))
	}
	return all[i]
}

// RespondJSON returns an answer with one JSON value.
func RespondJSON(status int, body string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// RespondPieces returns an answer sent in pieces, each followed by the separator.
func RespondPieces(mediaType, separator string, pieces ...string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		for _, p := range pieces {
			_, _ = fmt.Fprint(w, p, separator)
			w.(http.Flusher).Flush()
		}
	}
}

// NewRequest returns an ordinary request.
func NewRequest() loop.Request {
	return loop.Request{
		Messages: []loop.Message{loop.NewText(loop.RoleUser, "Do it.")},
		Tools:    []tools.Definition{{Name: "shell", Description: "Runs.", InputSchema: []byte(`{"type":"object"}`)}},
	}
}

// ServerSchema is a schema like an MCP server's, with references, alternatives and
// patterns.
const ServerSchema = `{"type":"object","properties":{"$filter":{"$ref":"#/$defs/d"}},"patternProperties":{"^x":{"not":{"const":null}}},"$defs":{"d":{"oneOf":[{"type":"string"},{"type":"null"}]}},"additionalProperties":{"type":"string"}}`

// DecodeServerSchema returns the decoded [ServerSchema].
func DecodeServerSchema(t *testing.T) any {
	t.Helper()
	var schema any
	if err := json.Unmarshal([]byte(ServerSchema), &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

// NewConversation returns a request with one round of calls. One call has a made-up
// name and malformed arguments; the other's result has an image. The round begins with
// reasoning.
func NewConversation(reasoning ...loop.Thinking) loop.Request {
	var round []loop.Block
	for _, r := range reasoning {
		round = append(round, loop.Block{Thinking: &r})
	}
	result := func(r loop.ToolResult) loop.Message {
		return loop.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &r}}}
	}
	return loop.Request{
		Messages: []loop.Message{
			loop.NewText(loop.RoleSystem, "Be good."),
			loop.NewText(loop.RoleUser, "Do <it> & more."),
			{Role: loop.RoleAssistant, Blocks: append(round,
				loop.Block{Text: &loop.Text{Text: "Looking."}},
				loop.Block{ToolUse: &loop.ToolUse{ID: "tu_1", ProviderID: "call_1", Name: "github/get_issue", Input: []byte(`{"n":1}`)}},
				loop.Block{ToolUse: &loop.ToolUse{ID: "tu_2", Name: "made up!", Input: []byte(`{}`), InputError: "bad", Raw: "{"}},
			)},
			result(loop.ToolResult{ToolUseID: "tu_1", Content: []tools.Block{{Text: "a picture:"}, {Image: []byte("png"), MediaType: "image/png"}}}),
			result(loop.ToolResult{ToolUseID: "tu_2", Content: []tools.Block{{Text: "no such tool"}}, IsError: true}),
		},
		Tools:           []tools.Definition{{Name: "github/get_issue", Description: "Gets.", InputSchema: []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)}},
		MaxOutputTokens: 77,
	}
}

// CallModel makes one call with a deadline. text is the deltas' text.
func CallModel(t *testing.T, m loop.Model, req loop.Request) (resp loop.Response, text string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, errors.New("test takes too long"))
	defer cancel()
	var b strings.Builder
	resp, err = m.Complete(ctx, req, func(d loop.Delta) { b.WriteString(d.Text) })
	return resp, b.String(), err
}

// CheckAnswer makes one call, compares its [Summarize] with want, and checks that the
// deltas have the answer's text.
func CheckAnswer(t *testing.T, m loop.Model, want string) {
	t.Helper()
	resp, text, err := CallModel(t, m, NewRequest())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, Summarize(resp)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	for _, b := range resp.Message.Blocks {
		if b.Text != nil && b.Text.Text != text {
			t.Errorf("deltas %q, answer %q", text, b.Text.Text)
		}
	}
}

// Summarize returns an answer in one line. Calls are name(id)arguments, and the
// signatures of reasoning follow slashes.
func Summarize(r loop.Response) string {
	var parts []string
	for _, b := range r.Message.Blocks {
		switch {
		case b.Thinking != nil && b.Thinking.Signature+b.Thinking.Redacted != "":
			parts = append(parts, fmt.Sprintf("thinking:%s/%s/%s", b.Thinking.Text, b.Thinking.Signature, b.Thinking.Redacted))
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

// RunTurn runs a turn and also returns the text of its deltas. It sets Session, Turn
// and Emit.
func RunTurn(t *testing.T, o loop.Options) (loop.Outcome, string) {
	t.Helper()
	var shown strings.Builder
	o.Session, o.Turn = "ses_1", "trn_1"
	o.Emit = func(e loop.Event) error {
		if d, ok := e.(loop.TextDelta); ok {
			shown.WriteString(d.Text)
		}
		return nil
	}
	out, err := loop.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return out, shown.String()
}

// Dispatcher records calls of its tools and returns "ok". Refused has the messages for
// calls that must not run.
type Dispatcher struct {
	Tools             []tools.Name
	IDs, Ran, Refused []string
	Rounds            int
}

// Definitions returns the definitions of Tools.
func (d *Dispatcher) Definitions() []tools.Definition {
	var out []tools.Definition
	for _, name := range d.Tools {
		out = append(out, tools.Definition{Name: name, Description: "A tool.", InputSchema: []byte(`{"type":"object"}`)})
	}
	return out
}

// Round records calls.
func (d *Dispatcher) Round(_ context.Context, calls []tools.Call) ([]tools.Result, error) {
	d.Rounds++
	var out []tools.Result
	for _, c := range calls {
		d.IDs = append(d.IDs, c.ID)
		text := "ok"
		if c.InputError != "" {
			text = c.InputError
			d.Refused = append(d.Refused, text)
		} else {
			d.Ran = append(d.Ran, string(c.Name)+" "+string(c.Input))
		}
		out = append(out, tools.Result{CallID: c.ID, Name: c.Name, Content: []tools.Block{{Text: text}}, IsError: c.InputError != ""})
	}
	return out, nil
}

// CheckRead checks the result of reading any answer. An error has a message of bounded
// length and comes without an answer. If wantDeltas is set, the deltas have the
// answer's text.
func CheckRead(t *testing.T, resp loop.Response, err error, deltas string, wantDeltas bool) {
	t.Helper()
	if err != nil {
		w := &modelhttp.Watcher{}
		if text := w.ModelError(err).Error(); len(text) > 2500 || !utf8.ValidString(text) {
			t.Errorf("error %q", text)
		}
		if len(resp.Message.Blocks) > 0 {
			t.Error("an error with an answer")
		}
		return
	}
	var text strings.Builder
	for _, b := range resp.Message.Blocks {
		if b.Text != nil {
			text.WriteString(b.Text.Text)
		}
	}
	if wantDeltas && text.String() != deltas {
		t.Errorf("delivered %q, answered %q", deltas, text.String())
	}
}

// RecordingTransport keeps the last request's body. It keeps no connections.
type RecordingTransport struct{ Last string }

// RoundTrip implements [http.RoundTripper].
func (r *RecordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.Last = string(body)
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(strings.NewReader(r.Last))
	req.Close = true
	return http.DefaultTransport.RoundTrip(req)
}
