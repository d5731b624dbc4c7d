package anthropic_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/anthropic"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The transcripts follow Anthropic's documentation of API version 2023-06-01, as of
// November 2026: "Streaming messages", "Thinking in tool and multi-turn workflows",
// "Handling stop reasons" and "Errors" on platform.claude.com/docs.

const started = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"claude-x-1","stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":1}}}`

func block(index int, start string, deltas ...string) []string {
	out := []string{fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, start)}
	for _, d := range deltas {
		out = append(out, fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, index, d))
	}
	return append(out, fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index))
}

func ended(reason string) []string {
	return []string{`{"type":"message_delta","delta":{"stop_reason":"` + reason + `","stop_sequence":null},"usage":{"output_tokens":15}}`, `{"type":"message_stop"}`}
}

func stream(parts ...[]string) []string {
	out := []string{started, `{"type":"ping"}`}
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

type endpoint struct{ *wiretest.Endpoint }

func newEndpoint(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *endpoint {
	t.Helper()
	return &endpoint{wiretest.NewEndpoint(t, "/v1/messages", answer)}
}

func sendEvents(w http.ResponseWriter, values ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, v := range values {
		var e struct{ Type string }
		_ = json.Unmarshal([]byte(v), &e)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Type, v)
	}
}

func (e *endpoint) newModel(t *testing.T, change func(*anthropic.Options)) *anthropic.Model {
	t.Helper()
	o := anthropic.Options{ModelOptions: loop.ModelOptions{Model: "claude-x", BaseURL: e.URL, APIKey: "sk-secret-key"}}
	if change != nil {
		change(&o)
	}
	m, err := anthropic.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func newRequest() loop.Request {
	return loop.Request{
		Messages: []loop.Message{loop.NewText(loop.RoleSystem, "Be brief."), loop.NewText(loop.RoleUser, "Do it.")},
		Tools:    []tools.Definition{{Name: "shell", Description: "Runs.", InputSchema: []byte(`{"type":"object","properties":{"command":{"type":"string"}},"additionalProperties":false}`)}},
	}
}

func TestStreams(t *testing.T) {
	text := block(0, `{"type":"text","text":""}`, `{"type":"text_delta","text":"Hel"}`, `{"type":"text_delta","text":"lo"}`)
	call := block(1, `{"type":"tool_use","id":"toolu_1","name":"shell","input":{}}`,
		`{"type":"input_json_delta","partial_json":""}`, `{"type":"input_json_delta","partial_json":"{\"command\": \"l"}`, `{"type":"input_json_delta","partial_json":"s\"}"}`)
	for name, tt := range map[string]struct {
		events []string
		want   string
	}{
		"text":          {stream(text, ended("end_turn")), "text:Hello"},
		"call":          {stream(text, call, ended("tool_use")), `text:Hello | shell(toolu_1){"command": "ls"}`},
		"reason lies":   {stream(text, call, ended("end_turn")), `text:Hello | shell(toolu_1){"command": "ls"}`},
		"empty input":   {stream(block(0, `{"type":"tool_use","id":"toolu_1","name":"shell","input":{}}`), ended("tool_use")), `shell(toolu_1){}`},
		"whole input":   {stream(block(0, `{"type":"tool_use","id":"toolu_1","name":"shell","input":{"command":"ls"}}`), ended("tool_use")), `shell(toolu_1){"command":"ls"}`},
		"no last event": {stream(text, ended("end_turn")[:1]), "text:Hello"},
		"no reason":     {stream(text, ended("end_turn")[1:]), "text:Hello"},
		"thinking": {
			stream(block(0, `{"type":"thinking","thinking":"","signature":""}`, `{"type":"thinking_delta","thinking":"h"}`, `{"type":"thinking_delta","thinking":"m"}`, `{"type":"signature_delta","signature":"EqQB"}`),
				block(1, `{"type":"redacted_thinking","data":"ENCR"}`), block(2, `{"type":"text","text":"Hi."}`), ended("end_turn")),
			"thinking:hm/EqQB/ | thinking://ENCR | text:Hi.",
		},
		"interleaved blocks": {
			stream([]string{
				`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"x","input":{}}}`,
				`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"b","name":"y","input":{}}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"n\":0}"}}`,
				`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"n\":1}"}}`,
			}, ended("tool_use")), `x(a){"n":0} | y(b){"n":1}`,
		},
		"cut in a call":     {stream(text, call[:3], ended("max_tokens")), `text:Hello | shell(toolu_1){"command": "l | cut`},
		"cut, then not":     {stream(text, call[:3], ended("max_tokens"), ended("tool_use")), `text:Hello | shell(toolu_1){"command": "l | cut`},
		"window is full":    {stream(text, ended("model_context_window_exceeded")), "text:Hello | cut"},
		"refusal":           {stream(text, ended("refusal")), "text:Hello | cut"},
		"unknown kinds":     {stream([]string{`{"type":"novel","x":[]}`}, block(5, `{"type":"server_thing","x":1}`, `{"type":"novel_delta"}`), text, ended("end_turn")), "text:Hello"},
		"delta of no block": {stream([]string{`{"type":"content_block_delta","index":7,"delta":{"type":"text_delta","text":"no"}}`}, text, ended("end_turn")), "text:Hello"},
		"nothing":           {stream(ended("end_turn")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) { sendEvents(w, tt.events...) })
			var shown strings.Builder
			resp, err := e.newModel(t, nil).Complete(t.Context(), newRequest(), func(d loop.Delta) { shown.WriteString(d.Text) })
			if err != nil {
				t.Fatal(err)
			}
			if got := wiretest.Summarize(resp); got != tt.want {
				t.Errorf("answer %s, want %s", got, tt.want)
			}
			if strings.Contains(tt.want, "Hello") && shown.String() != "Hello" {
				t.Errorf("shown %q", shown.String())
			}
			usage := limits.Usage{InputTokens: 25, CachedInputTokens: 1000, CacheWriteTokens: 200, OutputTokens: 15}
			if name == "no reason" {
				usage.OutputTokens = 1
			}
			if diff := cmp.Diff(usage, resp.Usage); diff != "" || resp.ID != "msg_1" || resp.Model != "claude-x-1" {
				t.Errorf("%s %s, usage (-want +got):\n%s", resp.ID, resp.Model, diff)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	text := block(0, `{"type":"text","text":""}`, `{"type":"text_delta","text":"Hel"}`)
	refuse := func(status int, kind, message string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_1"}`, kind, message)
		}
	}
	events := func(e ...string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { sendEvents(w, e...) }
	}
	const overloaded = `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`
	for name, tt := range map[string]struct {
		answer    func(http.ResponseWriter)
		class     loop.ErrorClass
		status    int
		retryable bool
	}{
		"key":                       {refuse(401, "authentication_error", "invalid x-api-key sk-secret-key"), loop.ModelAuth, 401, false},
		"permission":                {refuse(403, "permission_error", "no"), loop.ModelAuth, 403, false},
		"credit":                    {refuse(402, "billing_error", "Your credit balance is too low"), loop.ModelRateLimit, 402, false},
		"credit, as it was":         {refuse(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."), loop.ModelRateLimit, 400, false},
		"words of a conversation":   {refuse(400, "invalid_request_error", "messages.1: Your credit balance is too low"), loop.ModelInvalidRequest, 400, false},
		"rate limit":                {refuse(429, "rate_limit_error", "slow down"), loop.ModelRateLimit, 429, true},
		"overloaded":                {refuse(529, "overloaded_error", "Overloaded"), loop.ModelServer, 529, true},
		"server":                    {refuse(500, "api_error", "oops"), loop.ModelServer, 500, true},
		"timeout":                   {refuse(504, "timeout_error", "Request timed out"), loop.ModelServer, 504, true},
		"invalid":                   {refuse(400, "invalid_request_error", "max_tokens: must be at least 1"), loop.ModelInvalidRequest, 400, false},
		"model":                     {refuse(404, "not_found_error", "model: claude-x"), loop.ModelInvalidRequest, 404, false},
		"too long":                  {refuse(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), loop.ModelContextOverflow, 400, false},
		"too large":                 {refuse(413, "request_too_large", "Request exceeds the maximum size"), loop.ModelContextOverflow, 413, false},
		"overloaded in the stream":  {events(stream(text, []string{overloaded})...), loop.ModelServer, 529, false},
		"overloaded before content": {events(started, overloaded), loop.ModelServer, 529, true},
		"rate limit in the stream":  {events(stream(text, []string{`{"type":"error","error":{"type":"rate_limit_error","message":"x"}}`})...), loop.ModelRateLimit, 429, false},
		"cut":                       {events(stream(text)...), loop.ModelNetwork, 0, false},
		"not JSON":                  {events(started, `{"type":`), loop.ModelOther, 0, false},
		"a web page": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<!doctype html>")
		}, loop.ModelNetwork, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) { tt.answer(w) })
			resp, err := e.newModel(t, nil).Complete(t.Context(), newRequest(), nil)
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != tt.class || failure.Status != tt.status || failure.Retryable != tt.retryable {
				t.Errorf("error %#v, want %s, %d, retryable %v", err, tt.class, tt.status, tt.retryable)
			}
			if len(resp.Message.Blocks) > 0 || len(e.Requests()) != 1 || strings.Contains(fmt.Sprint(err), "sk-secret-key") {
				t.Errorf("%v after %d requests: %v", resp, len(e.Requests()), err)
			}
		})
	}
}

// TestRequest checks how a conversation is sent: one user message with all results of a
// round and what follows, reasoning unchanged and in place, and the marks for the
// prompt cache.
func TestRequest(t *testing.T) {
	e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		sendEvents(w, stream(block(0, `{"type":"text","text":"Hi."}`), ended("end_turn"))...)
	})
	req := newRequest()
	long := tools.Name("srv/" + strings.Repeat("a", 100))
	result := func(id string, isError bool, content ...tools.Block) loop.Message {
		return loop.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: id, Content: content, IsError: isError}}}}
	}
	req.Messages = append(req.Messages,
		loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
			{Thinking: &loop.Thinking{Text: "hm", Signature: "EqQB"}},
			{Thinking: &loop.Thinking{Redacted: "ENCR"}},
			{Thinking: &loop.Thinking{Text: "unsigned"}},
			{Text: &loop.Text{Text: "Both."}},
			{Text: &loop.Text{Text: " \n"}},
			{ToolUse: &loop.ToolUse{ID: "tu_1", ProviderID: "toolu_1", Name: "shell", Input: []byte(`{"command":"ls"}`)}},
			{ToolUse: &loop.ToolUse{ID: "tu_2", ProviderID: "call.2:x", Name: long, Input: []byte(`{}`)}},
		}},
		result("tu_1", false, tools.Block{Text: "out"}, tools.Block{Image: []byte("png"), MediaType: "image/png"}),
		result("tu_2", true, tools.Block{Text: "no"}),
		loop.NewText(loop.RoleUser, "Go on."),
	)
	m := e.newModel(t, func(o *anthropic.Options) {
		o.ReasoningEffort, o.Headers, o.ThinkingTokens = "low", map[string]string{"Anthropic-Beta": "x"}, 2000
	})
	if _, err := m.Complete(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	wire, err := long.LLMWithin(64)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"max_tokens":32000,"messages":[
		{"role":"user","content":[{"type":"text","text":"Do it.","cache_control":{"type":"ephemeral"}}]},
		{"role":"assistant","content":[{"type":"thinking","signature":"EqQB","thinking":"hm"},{"type":"redacted_thinking","data":"ENCR"},{"type":"text","text":"Both."},
			{"type":"tool_use","id":"toolu_1","name":"shell","input":{"command":"ls"}},{"type":"tool_use","id":"tu_2","name":"` + string(wire) + `","input":{}}]},
		{"role":"user","content":[
			{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"out"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"cG5n"}}]},
			{"type":"tool_result","tool_use_id":"tu_2","is_error":true,"content":[{"type":"text","text":"no"}]},
			{"type":"text","text":"Go on.","cache_control":{"type":"ephemeral"}}]}],
		"model":"claude-x","output_config":{"effort":"low"},"stream":true,"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
		"thinking":{"type":"enabled","budget_tokens":2000},
		"tools":[{"name":"shell","description":"Runs.","input_schema":{"type":"object","properties":{"command":{"type":"string"}},"additionalProperties":false}}]}`
	if diff := cmp.Diff(decode(t, want), decode(t, e.Request(t, 0).Text)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	h := e.Request(t, 0).Header
	if h.Get("X-Api-Key") != "sk-secret-key" || h.Get("Anthropic-Version") == "" || h.Get("Anthropic-Beta") != "x" || h.Get("Authorization") != "" {
		t.Errorf("headers %v", h)
	}
}

func decode(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestLoweredAnswerWithoutReasoning checks that a reasoning budget is left out if a
// limit lowered the answer so far that no answer would remain.
func TestLoweredAnswerWithoutReasoning(t *testing.T) {
	e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		sendEvents(w, stream(block(0, `{"type":"text","text":"Hi."}`), ended("end_turn"))...)
	})
	m := e.newModel(t, func(o *anthropic.Options) { o.ThinkingTokens = 2000 })
	for i, output := range []int64{2000, 2001} {
		req := newRequest()
		req.MaxOutputTokens = output
		if _, err := m.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		if reasons := strings.Contains(e.Request(t, i).Text, `"budget_tokens":2000`); reasons != (output > 2000) {
			t.Errorf("an answer of %d tokens: reasoning is asked for: %v", output, reasons)
		}
	}
}

// TestClosingRequest checks that a conversation with calls is sent with definitions of
// tools that can't be called, because the API requires some. Without calls, there is no
// tools member.
func TestClosingRequest(t *testing.T) {
	e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		sendEvents(w, stream(block(0, `{"type":"text","text":"Hi."}`), ended("end_turn"))...)
	})
	m := e.newModel(t, nil)
	req := newRequest()
	req.Tools = nil
	if _, err := m.Complete(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	req.Messages = append(req.Messages, loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{ToolUse: &loop.ToolUse{ID: "tu_1", Name: "shell", Input: []byte(`{}`)}}}},
		loop.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: "tu_1"}}}})
	if _, err := m.Complete(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(e.Request(t, 0).Text, `"tools"`) {
		t.Errorf("sent %s", e.Request(t, 0).Text)
	}
	if !strings.Contains(e.Request(t, 1).Text, `"tool_choice":{"type":"none"}`) || !strings.Contains(e.Request(t, 1).Text, `"tools":[{`) {
		t.Errorf("sent %s", e.Request(t, 1).Text)
	}
}

// TestStaleReasoning checks that reasoning which the provider refused is never sent
// again, but newer reasoning is.
func TestStaleReasoning(t *testing.T) {
	var e *endpoint
	e = newEndpoint(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if strings.Contains(e.Request(t, n-1).Text, `"OLD"`) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation.\"}}")
			return
		}
		sendEvents(w, stream(block(0, `{"type":"text","text":"Hi."}`), ended("end_turn"))...)
	})
	m := e.newModel(t, nil)
	req := newRequest()
	req.Messages = append(req.Messages, loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
		{Thinking: &loop.Thinking{Text: "hm", Signature: "OLD"}}, {Text: &loop.Text{Text: "Yes."}},
	}}, loop.NewText(loop.RoleUser, "Go on."))
	for range 2 {
		if _, err := m.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
	}
	req.Messages[2].Blocks = append(req.Messages[2].Blocks, loop.Block{Thinking: &loop.Thinking{Text: "new", Signature: "NEW"}})
	if _, err := m.Complete(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	if len(e.Requests()) != 4 || strings.Contains(e.Request(t, 3).Text, "OLD") || !strings.Contains(e.Request(t, 3).Text, "NEW") {
		t.Errorf("%d requests, the last one %s", len(e.Requests()), e.Request(t, len(e.Requests())-1).Text)
	}
}

// TestWhole checks the answer of a server that ignores the request for a stream.
func TestWhole(t *testing.T) {
	e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"msg_1","type":"message","model":"claude-x-1","content":[{"type":"text","text":"Hi."},{"type":"tool_use","id":"a","name":"shell","input":{"n":1}}],"stop_reason":"tool_use","usage":{"input_tokens":5,"output_tokens":2}}`)
	})
	resp, err := e.newModel(t, nil).Complete(t.Context(), newRequest(), nil)
	if err != nil || wiretest.Summarize(resp) != `text:Hi. | shell(a){"n":1}` || resp.Usage.Tokens() != 7 {
		t.Errorf("%s, %+v, %v", wiretest.Summarize(resp), resp.Usage, err)
	}
}

func TestInvalidOptions(t *testing.T) {
	for name, o := range map[string]anthropic.Options{
		"no model":       {},
		"no URL":         {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "::"}},
		"another scheme": {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "ftp://h"}},
		"credentials":    {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "https://u:p@h"}},
		"negative":       {ModelOptions: loop.ModelOptions{Model: "m", MaxOutputTokens: -1}},
		"no answer left": {ModelOptions: loop.ModelOptions{Model: "m", MaxOutputTokens: 1000}, ThinkingTokens: 1000},
	} {
		if _, err := anthropic.New(o); !errors.Is(err, anthropic.ErrInvalid) || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The schema of a server's tool arrives unchanged, except for properties that the API
// refuses: they would fail the request for all tools.
func TestSchemasOfServers(t *testing.T) {
	e := newEndpoint(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		sendEvents(w, stream(block(0, `{"type":"text","text":"Hi."}`), ended("end_turn"))...)
	})
	req := newRequest()
	req.Tools[0].InputSchema = []byte(`{"type":"object","properties":{"$filter":{"type":"string"},"a.b-c":{"$ref":"#/$defs/d"},"properties":{"type":"object","properties":{"ü":{},"e":{"enum":[{"properties":{"$f":1}}]}}}},
		"required":["$filter","a.b-c"],"$defs":{"d":{"anyOf":[{"type":"string"},{"type":"null"}]}},"additionalProperties":{"type":"string"}}`)
	if _, err := e.newModel(t, nil).Complete(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","properties":{"a.b-c":{"$ref":"#/$defs/d"},"properties":{"type":"object","properties":{"e":{"enum":[{"properties":{"$f":1}}]}}}},
		"required":["a.b-c"],"$defs":{"d":{"anyOf":[{"type":"string"},{"type":"null"}]}},"additionalProperties":{"type":"string"}}`
	got := e.Request(t, 0).Body["tools"].([]any)[0].(map[string]any)["input_schema"]
	if diff := cmp.Diff(decode(t, want), got); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}
