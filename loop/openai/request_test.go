package openai_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/tools"
)

var doneResponse = `{"choices":[{"message":{"content":"Done."},"finish_reason":"stop"}]}`

func TestRequest(t *testing.T) {
	e := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, doneResponse))
	req := wiretest.NewConversation(loop.Thinking{Text: "hm"})
	m := e.newModel(t, func(o *openai.Options) { o.Temperature = new(0.0) })
	if _, _, err := wiretest.CallModel(t, m, req); err != nil {
		t.Fatal(err)
	}
	want := `{
		"model": "m", "temperature": 0, "max_tokens": 77,
		"messages": [
			{"role": "system", "content": "Be good."},
			{"role": "user", "content": "Do <it> & more."},
			{"role": "assistant", "content": "Looking.", "tool_calls": [
				{"type": "function", "id": "call_1", "function": {"name": "github__get_issue", "arguments": "{\"n\":1}"}},
				{"type": "function", "id": "tu_2", "function": {"name": "made_up_", "arguments": "{}"}}
			]},
			{"role": "tool", "tool_call_id": "call_1", "content": "a picture:\n[1 images, sent after this result]"},
			{"role": "tool", "tool_call_id": "tu_2", "content": "no such tool"},
			{"role": "user", "content": [
				{"type": "text", "text": "Images of a tool result follow; they are tool output."},
				{"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
			]}
		],
		"tools": [{"type": "function", "function": {"name": "github__get_issue", "description": "Gets.",
			"parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}]
	}`
	var wanted map[string]any
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, e.Request(t, 0).Body); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if got := e.Request(t, 0).Header.Get("Authorization"); got != "Bearer sk-secret-key" {
		t.Errorf("authorization %q", got)
	}
}

// TestNoToolsField checks that a request without tools has no tools field.
func TestNoToolsField(t *testing.T) {
	e := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, doneResponse))
	req := wiretest.NewRequest()
	req.Tools = nil
	if _, _, err := wiretest.CallModel(t, e.newModel(t, nil), req); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"tools", "tool_choice", "stream", "stream_options", "temperature", "max_tokens"} {
		if _, ok := e.Request(t, 0).Body[key]; ok {
			t.Errorf("the request has %q: %v", key, e.Request(t, 0).Body)
		}
	}
}

func TestSendReasoning(t *testing.T) {
	history := []loop.Message{
		loop.NewText(loop.RoleUser, "Hi."),
		{Role: loop.RoleAssistant, Blocks: []loop.Block{{Thinking: &loop.Thinking{Text: "hm"}}, {Text: &loop.Text{Text: "Hi."}}}},
		loop.NewText(loop.RoleUser, "Go on."),
	}
	for _, send := range []bool{false, true} {
		e := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, doneResponse))
		if _, _, err := wiretest.CallModel(t, e.newModel(t, func(o *openai.Options) { o.SendReasoning = send }), loop.Request{Messages: history}); err != nil {
			t.Fatal(err)
		}
		_, sent := e.Request(t, 0).Body["messages"].([]any)[1].(map[string]any)["reasoning_content"]
		if sent != send {
			t.Errorf("SendReasoning %v: sent %v", send, sent)
		}
	}
}

// TestEnvironmentIsNotRead checks that variables which the library reads by default
// have no effect.
func TestEnvironmentIsNotRead(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-from-environment")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
	t.Setenv("OPENAI_ORG_ID", "org-from-environment")
	t.Setenv("OPENAI_PROJECT_ID", "proj-from-environment")
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-From: environment")
	e := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, doneResponse))
	if _, _, err := wiretest.CallModel(t, e.newModel(t, func(o *openai.Options) { o.APIKey = "" }), wiretest.NewRequest()); err != nil {
		t.Fatal(err)
	}
	for key, values := range e.Request(t, 0).Header {
		if strings.Contains(strings.Join(values, " "), "environment") {
			t.Errorf("%s: %v", key, values)
		}
	}
	if got := e.Request(t, 0).Header.Get("Authorization"); got != "" {
		t.Errorf("authorization %q without a key", got)
	}
}

// TestRefusedParameters checks that a refused parameter is left out of later
// requests.
func TestRefusedParameters(t *testing.T) {
	refuses := func(status int, body string, bad func(map[string]any) bool) func(*endpoint) func(int, http.ResponseWriter, *http.Request) {
		return func(e *endpoint) func(int, http.ResponseWriter, *http.Request) {
			return func(n int, w http.ResponseWriter, r *http.Request) {
				if bad(e.Request(t, n-1).Body) {
					wiretest.RespondJSON(status, body)(n, w, r)
					return
				}
				wiretest.RespondJSON(http.StatusOK, doneResponse)(n, w, r)
			}
		}
	}
	has := func(key string) func(map[string]any) bool {
		return func(body map[string]any) bool { _, ok := body[key]; return ok }
	}
	for name, tt := range map[string]struct {
		answer   func(*endpoint) func(int, http.ResponseWriter, *http.Request)
		requests int
		ok       bool
	}{
		"stream_options": {
			answer: refuses(400, `{"error":{"message":"Unrecognized request argument supplied: stream_options"}}`, has("stream_options")), requests: 3, ok: true,
		},
		"stream_options, 422": {
			answer: refuses(422, `{"detail":[{"loc":["body","stream_options"],"msg":"extra fields not permitted"}]}`, has("stream_options")), requests: 3, ok: true,
		},
		"max_tokens": {
			answer:   refuses(400, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","code":"unsupported_parameter"}}`, has("max_tokens")),
			requests: 3, ok: true,
		},
		"whatever it is": {
			answer: refuses(400, `{"error":{"message":"stream_options, max_tokens: never"}}`, func(map[string]any) bool { return true }), requests: 3,
		},
		"something else": {
			answer: refuses(400, `{"error":{"message":"temperature is not supported"}}`, has("model")), requests: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var e *endpoint
			e = newEndpoint(t, func(n int, w http.ResponseWriter, r *http.Request) { tt.answer(e)(n, w, r) })
			m := e.newModel(t, func(o *openai.Options) { o.Stream, o.MaxOutputTokens = true, 5 })
			_, _, err := wiretest.CallModel(t, m, wiretest.NewRequest())
			if (err == nil) != tt.ok {
				t.Errorf("error %v", err)
			}
			if tt.ok {
				if _, _, err := wiretest.CallModel(t, m, wiretest.NewRequest()); err != nil {
					t.Errorf("the second time: %v", err)
				}
			}
			if len(e.Requests()) != tt.requests {
				t.Errorf("%d requests, want %d", len(e.Requests()), tt.requests)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]openai.Options{
		"no model":       {},
		"no scheme":      {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "localhost:11434/v1"}},
		"another scheme": {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "ftp://localhost/v1"}},
		"no host":        {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "http:///v1"}},
		"not a URL":      {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "http://[::1"}},
		"credentials":    {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "http://user:secret@localhost/v1"}},
		"negative idle":  {ModelOptions: loop.ModelOptions{Model: "m", IdleTimeout: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openai.New(o)
			if !errors.Is(err, openai.ErrInvalid) {
				t.Errorf("New() = %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error contains the credentials: %v", err)
			}
		})
	}
}

func TestInfo(t *testing.T) {
	m, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "m"}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := loop.ModelInfo{Provider: "openai", Model: "m", BaseURL: openai.DefaultBaseURL, ToolNameBytes: 64}
	if diff := cmp.Diff(want, m.Info()); diff != "" {
		t.Error(diff)
	}
}

// TestLongToolNames checks that a name longer than OpenAI's 64 bytes has the same short
// form in offered tools and in the history. The control is its full form.
func TestLongToolNames(t *testing.T) {
	e := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, doneResponse))
	long := tools.Name("srv/" + strings.Repeat("a", 100))
	req := loop.Request{
		Messages: []loop.Message{
			loop.NewText(loop.RoleUser, "Do."),
			{Role: loop.RoleAssistant, Blocks: []loop.Block{{ToolUse: &loop.ToolUse{ID: "tu_1", Name: long, Input: []byte(`{}`)}}}},
			{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: "tu_1", Content: []tools.Block{{Text: "ok"}}}}}},
		},
		Tools: []tools.Definition{{Name: long, Description: "Does.", InputSchema: []byte(`{"type":"object"}`)}},
	}
	if _, _, err := wiretest.CallModel(t, e.newModel(t, func(*openai.Options) {}), req); err != nil {
		t.Fatal(err)
	}
	sent, err := json.Marshal(e.Request(t, 0).Body)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := long.LLMWithin(64)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(sent), `"name":"`+string(wire)+`"`); n != 2 || len(wire) > 64 {
		t.Errorf("%q occurs %d times in %s", wire, n, sent)
	}
	if whole, err := long.LLM(); err != nil || len(whole) <= 64 || strings.Contains(string(sent), string(whole)) {
		t.Errorf("control: the whole name %q is sent, or short: %v", whole, err)
	}
}

// The schema of a server's tool arrives unchanged, and no tool is strict: strict
// schemas are a small subset.
func TestSchemasOfServers(t *testing.T) {
	req := wiretest.NewRequest()
	req.Tools[0].InputSchema = []byte(wiretest.ServerSchema)
	chat := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, doneResponse))
	if _, _, err := wiretest.CallModel(t, chat.newModel(t, nil), req); err != nil {
		t.Fatal(err)
	}
	responses, m := newResponses(t, wiretest.RespondJSON(http.StatusOK, completed(wireText)), nil)
	if _, _, err := wiretest.CallModel(t, m, req); err != nil {
		t.Fatal(err)
	}
	for api, tool := range map[openai.API]any{
		openai.Chat:      chat.Request(t, 0).Body["tools"].([]any)[0].(map[string]any)["function"],
		openai.Responses: responses.Request(t, 0).Body["tools"].([]any)[0],
	} {
		fields := tool.(map[string]any)
		if diff := cmp.Diff(wiretest.DecodeServerSchema(t), fields["parameters"]); diff != "" || fields["strict"] == true {
			t.Errorf("%v: strict %v, schema (-want +got):\n%s", api, fields["strict"], diff)
		}
	}
}
