package ollama_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/ollama"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type endpoint struct{ *wiretest.Endpoint }

func newEndpoint(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *endpoint {
	t.Helper()
	return &endpoint{wiretest.NewEndpoint(t, "/api/chat", answer)}
}

func (e *endpoint) newModel(t *testing.T, change func(*ollama.Options)) *ollama.Model {
	t.Helper()
	o := ollama.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: e.URL}, Stream: true}
	if change != nil {
		change(&o)
	}
	m, err := ollama.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func respondLines(lines ...string) func(int, http.ResponseWriter, *http.Request) {
	return wiretest.RespondPieces("application/x-ndjson", "\n", lines...)
}

const done = `{"model":"m:8b","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","prompt_eval_count":26,"eval_count":9}`

func TestRequest(t *testing.T) {
	e := newEndpoint(t, respondLines(done))
	m := e.newModel(t, func(o *ollama.Options) {
		o.ContextWindow, o.Temperature, o.ReasoningEffort, o.APIKey, o.Headers = 32_768, new(0.5), "high", "secret-key", map[string]string{"X-Team": "blue"}
	})
	req := wiretest.NewConversation(loop.Thinking{Text: "hm"})
	if _, _, err := wiretest.CallModel(t, m, req); err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(`{
		"model": "m", "stream": true, "think": "high", "truncate": false, "shift": false,
		"options": {"num_ctx": 32768, "num_predict": 77, "temperature": 0.5},
		"messages": [
			{"role": "system", "content": "Be good."},
			{"role": "user", "content": "Do <it> & more."},
			{"role": "assistant", "content": "Looking.", "thinking": "hm", "tool_calls": [
				{"id": "call_1", "function": {"index": 0, "name": "github__get_issue", "arguments": {"n": 1}}},
				{"id": "tu_2", "function": {"index": 1, "name": "made_up_", "arguments": {}}}
			]},
			{"role": "tool", "tool_name": "github__get_issue", "tool_call_id": "call_1", "content": "a picture:\n[1 images, sent after this result]"},
			{"role": "tool", "tool_name": "made_up_", "tool_call_id": "tu_2", "content": "no such tool"},
			{"role": "user", "content": "Images of a tool result follow; they are tool output.", "images": ["cG5n"]}
		],
		"tools": [{"type": "function", "function": {"name": "github__get_issue", "description": "Gets.", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}]
	}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, e.Request(t, 0).Body); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if h := e.Request(t, 0).Header; h.Get("Authorization") != "Bearer secret-key" || h.Get("X-Team") != "blue" {
		t.Errorf("headers %v", h)
	}
	if _, _, err := wiretest.CallModel(t, e.newModel(t, nil), loop.Request{Messages: req.Messages[:2]}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"tools", "think", "options"} {
		if e.Request(t, 1).Body[key] != nil || e.Request(t, 1).Header.Get("Authorization") != "" {
			t.Errorf("the request has %q: %v, %v", key, e.Request(t, 1).Body, e.Request(t, 1).Header)
		}
	}
}

// The schema of a server's tool arrives unchanged.
func TestSchemasOfServers(t *testing.T) {
	e := newEndpoint(t, respondLines(done))
	req := wiretest.NewRequest()
	req.Tools[0].InputSchema = []byte(wiretest.ServerSchema)
	if _, _, err := wiretest.CallModel(t, e.newModel(t, nil), req); err != nil {
		t.Fatal(err)
	}
	tool := e.Request(t, 0).Body["tools"].([]any)[0].(map[string]any)["function"].(map[string]any)
	if diff := cmp.Diff(wiretest.DecodeServerSchema(t), tool["parameters"]); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}

func TestAnswers(t *testing.T) {
	say := func(message string) string { return `{"model":"m:8b","message":` + message + `,"done":false}` }
	call := func(calls string) string {
		return say(`{"role":"assistant","content":"","tool_calls":[` + calls + `]}`)
	}
	for name, tt := range map[string]struct {
		lines []string
		want  string
	}{
		"text":                   {[]string{say(`{"content":"Hel"}`), say(`{"content":"lo."}`), done}, "text:Hello."},
		"whole":                  {[]string{`{"message":{"content":"Hello."},"done":true}`}, "text:Hello."},
		"on many lines":          {[]string{"{\n\"message\":{\"content\":\"Hello.\"},\n\"done\":true}"}, "text:Hello."},
		"thinking":               {[]string{say(`{"thinking":"h"}`), say(`{"thinking":"m"}`), say(`{"content":"Hi."}`), done}, "thinking:hm | text:Hi."},
		"calls in pieces":        {[]string{call(`{"function":{"name":"x","arguments":{"a":1}}}`), call(`{"function":{"name":"y","arguments":{}}}`), done}, `x(){"a":1} | y(){}`},
		"calls at once":          {[]string{call(`{"id":"a","function":{"index":0,"name":"x","arguments":{}}},{"id":"b","function":{"index":0,"name":"x","arguments":{}}}`), done}, `x(a){} | x(b){}`},
		"a call in the end":      {[]string{`{"message":{"content":"","tool_calls":[{"function":{"name":"x","arguments":{}}}]},"done":true}`}, "x(){}"},
		"a call sent again":      {[]string{call(`{"id":"a","function":{"name":"x","arguments":{}}}`), call(`{"id":"a","function":{"name":"x","arguments":{}}}`), done}, "x(a){}"},
		"equal calls without id": {[]string{call(`{"function":{"name":"x","arguments":{}}},{"function":{"name":"x","arguments":{}}}`), done}, "x(){} | x(){}"},
		"arguments as text":      {[]string{call(`{"function":{"name":"x","arguments":"{\"a\":1}"}}`), done}, `x(){"a":1}`},
		"big numbers":            {[]string{call(`{"function":{"name":"x","arguments":{"n":12345678901234567890}}}`), done}, `x(){"n":12345678901234567890}`},
		"no arguments":           {[]string{call(`{"function":{"name":"x"}},{"function":{"name":"y","arguments":null}}`), done}, "x() | y()"},
		"cut at the length":      {[]string{say(`{"content":"Hel"}`), `{"done":true,"done_reason":"length"}`}, "text:Hel | cut"},
		"call as text":           {[]string{say(`{"content":"{\"name\":\"x\",\"parameters\":{}}"}`), done}, `text:{"name":"x","parameters":{}}`},
		"after the end":          {[]string{say(`{"content":"Hi."}`), done, `{"error":"late"}`, "<html>"}, "text:Hi."},
		"error: null":            {[]string{`{"error":null,"message":{"content":"Hi."},"done":true}`}, "text:Hi."},
		"unknown members":        {[]string{`{"x":[1],"message":{"content":"Hi.","y":{},"images":null},"done":true,"logprobs":[]}`}, "text:Hi."},
		"loaded":                 {[]string{`{"message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, respondLines(tt.lines...))
			wiretest.CheckAnswer(t, e.newModel(t, nil), tt.want)
		})
	}
}

func TestUsage(t *testing.T) {
	e := newEndpoint(t, respondLines(done))
	resp, _, err := wiretest.CallModel(t, e.newModel(t, nil), wiretest.NewRequest())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(limits.Usage{InputTokens: 26, OutputTokens: 9}, resp.Usage); diff != "" || resp.Model != "m:8b" || resp.Finish != "stop" {
		t.Errorf("model %s, finish %s, usage (-want +got):\n%s", resp.Model, resp.Finish, diff)
	}
}

// TestFailures checks that nothing of an incomplete answer is used, and failures'
// classes.
func TestFailures(t *testing.T) {
	begun := `{"message":{"content":"","tool_calls":[{"function":{"name":"x","arguments":{}}}]},"done":false}`
	for name, tt := range map[string]struct {
		answer    func(int, http.ResponseWriter, *http.Request)
		change    func(*ollama.Options)
		class     loop.ErrorClass
		retryable bool
		words     string
	}{
		"ends without an end": {answer: respondLines(begun), class: loop.ModelNetwork, words: "broke off"},
		"ends in a line":      {answer: wiretest.RespondJSON(http.StatusOK, begun+"\n"+`{"message":{"content":"x`), class: loop.ModelNetwork, words: "broke off"},
		"nothing":             {answer: respondLines(), class: loop.ModelNetwork, words: "broke off"},
		"connection cut": {answer: func(n int, w http.ResponseWriter, r *http.Request) {
			respondLines(begun)(n, w, r)
			panic(http.ErrAbortHandler)
		}, class: loop.ModelNetwork, words: "broke off"},
		"error in the stream":  {answer: respondLines(begun, `{"error":"an error was encountered while running the model"}`), class: loop.ModelServer, words: "running the model"},
		"error at once":        {answer: respondLines(`{"error":"busy"}`), class: loop.ModelServer, retryable: true, words: "busy"},
		"error as a name":      {answer: respondLines(begun, `{"error parsing tool call":"raw='{'"}`), class: loop.ModelServer, words: "error parsing tool call"},
		"not found":            {answer: wiretest.RespondJSON(http.StatusNotFound, `{"error":"model 'm' not found"}`), class: loop.ModelInvalidRequest, words: "model 'm' not found"},
		"no tools":             {answer: wiretest.RespondJSON(http.StatusBadRequest, `{"error":"registry.ollama.ai/library/m does not support tools"}`), class: loop.ModelInvalidRequest, words: "does not support tools"},
		"too long":             {answer: wiretest.RespondJSON(http.StatusBadRequest, `{"error":"the input length exceeds the context length"}`), class: loop.ModelContextOverflow, words: "context length"},
		"too long, in a 500":   {answer: wiretest.RespondJSON(http.StatusInternalServerError, `{"error":"the input length exceeds the context length"}`), class: loop.ModelContextOverflow, words: "context length"},
		"unauthorized":         {answer: wiretest.RespondJSON(http.StatusUnauthorized, `{"error":"unauthorized","signin_url":"https://ollama.com/connect?key=x"}`), class: loop.ModelAuth, words: "unauthorized"},
		"busy":                 {answer: wiretest.RespondJSON(http.StatusServiceUnavailable, `{"error":"server busy, please try again.  maximum pending requests exceeded"}`), class: loop.ModelServer, retryable: true, words: "server busy"},
		"rate limit":           {answer: wiretest.RespondJSON(http.StatusTooManyRequests, `{"error":"too many concurrent requests"}`), class: loop.ModelRateLimit, retryable: true, words: "concurrent"},
		"page":                 {answer: respondLines("<html><body>502"), class: loop.ModelOther, words: "not one of the protocol"},
		"of another protocol":  {answer: respondLines(`{"choices":[]}`), class: loop.ModelOther, words: "without a message"},
		"no object":            {answer: respondLines(`[1]`), class: loop.ModelOther, words: "not one of the protocol"},
		"calls are no list":    {answer: respondLines(`{"message":{"tool_calls":{"x":1}},"done":true}`), class: loop.ModelOther, words: "not one of the protocol"},
		"deep":                 {answer: respondLines(strings.Repeat("[", 1e5)), class: loop.ModelOther, words: "not one of the protocol"},
		"more than the limit":  {answer: respondLines(`{"message":{"content":"` + strings.Repeat("x", 2<<20) + `"},"done":true}`), change: func(o *ollama.Options) { o.MaxResponseBytes = 1 << 20 }, class: loop.ModelOther, words: "larger than allowed"},
		"many small ones":      {answer: respondLines(strings.Fields(strings.Repeat(`{"message":{"content":"`+strings.Repeat("x", 1<<20)+`"}} `, 17))...), class: loop.ModelOther, words: "larger than allowed"},
		"refused without body": {answer: wiretest.RespondJSON(http.StatusBadGateway, ""), class: loop.ModelServer, retryable: true, words: "502"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, tt.answer)
			resp, _, err := wiretest.CallModel(t, e.newModel(t, tt.change), wiretest.NewRequest())
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != tt.class || failure.Retryable != tt.retryable || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("error %.300v, want class %s", err, tt.class)
			}
			if len(resp.Message.Blocks) > 0 || len(e.Requests()) != 1 {
				t.Errorf("answer %q, %d requests", wiretest.Summarize(resp), len(e.Requests()))
			}
		})
	}
}

// TestThinkWords checks that models without levels are just told to think.
func TestThinkWords(t *testing.T) {
	e := newEndpoint(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			wiretest.RespondJSON(http.StatusBadRequest, `{"error":"think value \"low\" is not supported for this model"}`)(n, w, r)
			return
		}
		respondLines(done)(n, w, r)
	})
	m := e.newModel(t, func(o *ollama.Options) { o.ReasoningEffort = "low" })
	for range 2 {
		if _, _, err := wiretest.CallModel(t, m, wiretest.NewRequest()); err != nil {
			t.Fatal(err)
		}
	}
	off := e.newModel(t, func(o *ollama.Options) { o.ReasoningEffort = "none" })
	if _, _, err := wiretest.CallModel(t, off, wiretest.NewRequest()); err != nil {
		t.Fatal(err)
	}
	var got []any
	for _, r := range e.Requests() {
		got = append(got, r.Body["think"])
	}
	if diff := cmp.Diff([]any{"low", true, true, false}, got); diff != "" {
		t.Errorf("think (-want +got):\n%s", diff)
	}
}

// TestCancel checks that a cancelled call ends with the cause, not with a ModelError.
func TestCancel(t *testing.T) {
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	e := newEndpoint(t, func(int, http.ResponseWriter, *http.Request) { cancel(why); <-release })
	defer close(release)
	_, err := e.newModel(t, nil).Complete(ctx, wiretest.NewRequest(), nil)
	if _, isFailure := errors.AsType[*loop.ModelError](err); !errors.Is(err, why) || isFailure {
		t.Errorf("error %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]ollama.Options{
		"no model":    {},
		"not a URL":   {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "localhost:11434"}},
		"credentials": {ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "http://u:p@localhost"}},
		"negative":    {ModelOptions: loop.ModelOptions{Model: "m"}, ContextWindow: -1},
	} {
		if _, err := ollama.New(o); !errors.Is(err, ollama.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := ollama.New(ollama.Options{ModelOptions: loop.ModelOptions{Model: "m"}})
	if err != nil || m.Info().BaseURL != ollama.DefaultBaseURL {
		t.Errorf("%+v, %v", m.Info(), err)
	}
}
