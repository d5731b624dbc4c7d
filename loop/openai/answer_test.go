package openai_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

// streamCases returns answers in pieces as endpoints send them, with their
// summaries.
func streamCases() map[string]struct {
	pieces []string
	want   string
} {
	call := func(s string) string { return deltaChunk(`{"tool_calls":[` + s + `]}`) }
	type c = struct {
		pieces []string
		want   string
	}
	return map[string]c{
		"text": {
			pieces: append(dataEvents(deltaChunk(`{"role":"assistant","content":""}`), deltaChunk(`{"content":"Hel"}`), deltaChunk(`{"content":"lo."}`), finishChunk("stop")), "data: [DONE]"),
			want:   "text:Hello.",
		},
		"one call in pieces": {
			pieces: append(dataEvents(call(`{"index":0,"id":"a","type":"function","function":{"name":"shell","arguments":""}}`),
				call(`{"index":0,"function":{"arguments":"{\"com"}}`), call(`{"index":0,"function":{"arguments":"mand\":1}"}}`), finishChunk("tool_calls")), "data: [DONE]"),
			want: `shell(a){"command":1}`,
		},
		"two calls, mixed": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x"}},{"index":1,"id":"b","function":{"name":"y"}}`),
				call(`{"index":1,"function":{"arguments":"{\"n\":"}}`), call(`{"index":0,"function":{"arguments":"{}"}}`),
				call(`{"index":1,"function":{"arguments":"2}"}}`), finishChunk("tool_calls")),
			want: `x(a){} | y(b){"n":2}`,
		},
		"ollama: every index 0, other ids": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), call(`{"index":0,"id":"b","function":{"name":"y","arguments":"{}"}}`), finishChunk("stop")),
			want:   `x(a){} | y(b){}`,
		},
		"every index 0, no ids": {
			pieces: dataEvents(call(`{"index":0,"function":{"name":"x","arguments":"{}"}}`), call(`{"index":0,"function":{"name":"y","arguments":"{\"a\":1}"}}`), finishChunk("stop")),
			want:   `x(){} | y(){"a":1}`,
		},
		"every index 0, pieces after a new id": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), call(`{"index":0,"id":"b","function":{"name":"y"}}`),
				call(`{"index":0,"function":{"arguments":"{\"q\":"}}`), call(`{"index":0,"function":{"arguments":"1}"}}`), finishChunk("stop")),
			want: `x(a){} | y(b){"q":1}`,
		},
		"no index, ids": {
			pieces: dataEvents(call(`{"id":"a","function":{"name":"x","arguments":"{"}}`), call(`{"id":"b","function":{"name":"y","arguments":"{"}}`),
				call(`{"id":"a","function":{"arguments":"}"}}`), call(`{"id":"b","function":{"arguments":"}"}}`), finishChunk("tool_calls")),
			want: `x(a){} | y(b){}`,
		},
		"no index, no ids": {
			pieces: dataEvents(call(`{"function":{"name":"x","arguments":"{\"a\""}}`), call(`{"function":{"arguments":":1}"}}`),
				call(`{"function":{"name":"x","arguments":"{}"}}`), finishChunk("tool_calls")),
			want: `x(){"a":1} | x(){}`,
		},
		"id and name in every piece": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{\"a\""}}`), call(`{"index":0,"id":"a","function":{"name":"x","arguments":":1}"}}`), finishChunk("tool_calls")),
			want:   `x(a){"a":1}`,
		},
		"arguments as an object": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":{"path":"a b"}}}`), finishChunk("tool_calls")),
			want:   `x(a){"path":"a b"}`,
		},
		"a call repeated under a second index": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{\"a\":1}"}}`), call(`{"index":1,"id":"a","function":{"name":"x","arguments":"{\"a\":1}"}}`), finishChunk("tool_calls")),
			want:   `x(a){"a":1}`,
		},
		"one id for two calls": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{\"a\":1}"}}`), call(`{"index":1,"id":"a","function":{"name":"x","arguments":"{\"a\":2}"}}`), finishChunk("tool_calls")),
			want:   `x(a){"a":1} | x(a){"a":2}`,
		},
		"the head of the second call has the index of the first": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), call(`{"index":0,"id":"b","function":{"name":"y"}}`),
				call(`{"index":1,"function":{"arguments":"{\"q\":"}}`), call(`{"index":1,"function":{"arguments":"1}"}}`), finishChunk("tool_calls")),
			want: `x(a){} | y(b){"q":1}`,
		},
		"the name again behind the arguments": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), call(`{"index":0,"function":{"name":"x","arguments":""}}`), finishChunk("tool_calls")),
			want:   "x(a){}",
		},
		"the name of a second call without an id": {
			pieces: dataEvents(call(`{"index":0,"function":{"name":"x","arguments":"{\"a\":1}"}}`), call(`{"index":0,"function":{"name":"x","arguments":""}}`),
				call(`{"index":0,"function":{"arguments":"{\"a\":"}}`), call(`{"index":0,"function":{"arguments":"2}"}}`), finishChunk("tool_calls")),
			want: `x(){"a":1} | x(){"a":2}`,
		},
		"index as text, id as number, null arguments": {
			pieces: dataEvents(call(`{"index":"0","id":7,"function":{"name":"x","arguments":null}}`), call(`{"index":"0","id":null,"function":{"name":null,"arguments":"{}"}}`), finishChunk("tool_calls")),
			want:   `x(7){}`,
		},
		"the same piece twice runs nothing": { // the loop refuses the arguments
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), finishChunk("tool_calls")),
			want:   `x(a){}{}`,
		},
		"200 calls": {
			pieces: dataEvents(call(strings.Join(slices.Repeat([]string{`{"function":{"name":"x","arguments":"{}"}}`}, 200), ",")), finishChunk("tool_calls")),
			want:   strings.Join(slices.Repeat([]string{"x(){}"}, 200), " | "),
		},
		"huge index": {
			pieces: dataEvents(call(`{"index":2000000000,"id":"a","function":{"name":"x","arguments":"{}"}}`), call(`{"index":-5,"id":"b","function":{"name":"y","arguments":"{}"}}`), finishChunk("tool_calls")),
			want:   `x(a){} | y(b){}`,
		},
		"finish reason lies": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}`), finishChunk("stop")),
			want:   `x(a){}`,
		},
		"no finish reason, done": {
			pieces: append(dataEvents(deltaChunk(`{"content":"Hi."}`)), "data: [DONE]"), want: "text:Hi.",
		},
		"finish reason, not done": {pieces: dataEvents(deltaChunk(`{"content":"Hi."}`), finishChunk("stop")), want: "text:Hi."},
		"cut at the output limit": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{\"a\":1}"}}`), finishChunk("length")),
			want:   `x(a){"a":1} | cut`,
		},
		"length, then another reason": {
			pieces: dataEvents(call(`{"index":0,"id":"a","function":{"name":"x","arguments":"{\"a\":1}"}}`), finishChunk("length"), finishChunk("tool_calls")),
			want:   `x(a){"a":1} | cut`,
		},
		"filtered": {pieces: dataEvents(deltaChunk(`{"content":"Hi"}`), finishChunk("content_filter")), want: "text:Hi | cut"},
		"null content and calls": {
			pieces: dataEvents(deltaChunk(`{"content":null,"tool_calls":null,"function_call":null}`), deltaChunk(`{"content":"Hi."}`), finishChunk("stop")), want: "text:Hi.",
		},
		"content in parts": {
			pieces: dataEvents(deltaChunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"Hi."}]}`), finishChunk("stop")), want: "thinking:hm | text:Hi.",
		},
		"reasoning_content": {pieces: dataEvents(deltaChunk(`{"reasoning_content":"h"}`), deltaChunk(`{"reasoning_content":"m"}`), deltaChunk(`{"content":"Hi."}`), finishChunk("stop")), want: "thinking:hm | text:Hi."},
		"reasoning":         {pieces: dataEvents(deltaChunk(`{"reasoning":"hm","content":"Hi."}`), finishChunk("stop")), want: "thinking:hm | text:Hi."},
		"refusal":           {pieces: dataEvents(deltaChunk(`{"refusal":"No."}`), finishChunk("stop")), want: "text:No."},
		"function_call":     {pieces: dataEvents(deltaChunk(`{"function_call":{"name":"x","arguments":"{\"a\""}}`), deltaChunk(`{"function_call":{"arguments":":1}"}}`), finishChunk("function_call")), want: `x(){"a":1}`},
		"comments and blanks": {
			pieces: []string{": OPENROUTER PROCESSING", ":", "", "event: message\nid: 1\ndata: " + deltaChunk(`{"content":"Hi."}`), "data: ", "retry: 5", "data:" + finishChunk("stop"), "data: [DONE]"},
			want:   "text:Hi.",
		},
		"carriage returns": {pieces: []string{"data: " + deltaChunk(`{"content":"Hi."}`) + "\r\n\r", "data: " + finishChunk("stop") + "\r\n\r"}, want: "text:Hi."},
		"data in lines":    {pieces: []string{"data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"Hi.\"},\"finish_reason\":\"stop\"}]}"}, want: "text:Hi."},
		"other choices":    {pieces: dataEvents(`{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"Hi."},"finish_reason":"stop"}]}`), want: "text:Hi."},
		"no choices":       {pieces: dataEvents(`{"choices":[]}`, `{"choices":null}`, `{}`, deltaChunk(`{"content":"Hi."}`), finishChunk("stop")), want: "text:Hi."},
		"no content":       {pieces: dataEvents(finishChunk("stop")), want: ""},
		"after done":       {pieces: append(append(dataEvents(deltaChunk(`{"content":"Hi."}`)), "data: [DONE]"), dataEvents(deltaChunk(`{"content":"no"}`))...), want: "text:Hi."},
		"unknown fields":   {pieces: dataEvents(`{"x":[{}],"choices":[{"y":{},"logprobs":null,"delta":{"content":"Hi.","z":1},"finish_reason":"stop"}],"system_fingerprint":null}`), want: "text:Hi."},
		"error: null":      {pieces: dataEvents(`{"error":null,"choices":[{"delta":{"content":"Hi."},"finish_reason":"stop"}]}`), want: "text:Hi."},
		"a call in a text": {pieces: dataEvents(deltaChunk(`{"content":"<tool_call>{\"name\":\"x\"}</tool_call>"}`), finishChunk("stop")), want: `text:<tool_call>{"name":"x"}</tool_call>`},
	}
}

func TestStreams(t *testing.T) {
	for name, tt := range streamCases() {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, respondEvents(tt.pieces...))
			wiretest.CheckAnswer(t, e.newModel(t, enableStream), tt.want)
		})
	}
}

// TestBrokenStreams checks that nothing of an incomplete answer is used.
func TestBrokenStreams(t *testing.T) {
	call := deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"shell","arguments":"{\"command\":\"rm x\"}"}}]}`)
	for name, tt := range map[string]struct {
		answer func(int, http.ResponseWriter, *http.Request)
		class  loop.ErrorClass
		status int
		// retryable is set if the error came before any piece of the answer.
		retryable bool
	}{
		"ends without an end":    {answer: respondEvents(dataEvents(call)...), class: loop.ModelNetwork},
		"ends at once":           {answer: respondEvents(), class: loop.ModelNetwork},
		"text, without an end":   {answer: respondEvents(dataEvents(deltaChunk(`{"content":"Hel"}`))...), class: loop.ModelNetwork},
		"connection cut":         {answer: respondThenAbort(dataEvents(call)...), class: loop.ModelNetwork},
		"connection cut at once": {answer: respondThenAbort(), class: loop.ModelNetwork},
		"error in the stream":    {answer: respondEvents(dataEvents(call, `{"error":{"message":"provider is down","code":502}}`)...), class: loop.ModelServer, status: 502},
		"rate limit in the stream": {
			answer: respondEvents(dataEvents(call, `{"error":{"message":"slow down","code":429,"metadata":{}},"choices":[]}`)...), class: loop.ModelRateLimit, status: 429,
		},
		"error as text": {answer: respondEvents(dataEvents(call, `{"error":"boom"}`)...), class: loop.ModelServer, status: 502},
		"error, typed":  {answer: respondEvents("event: error\ndata: {\"error\":{\"type\":\"rate_limit_exceeded\",\"message\":\"x\"}}"), class: loop.ModelRateLimit, status: 429, retryable: true},
		"not JSON":      {answer: respondEvents(dataEvents(call, `{"choices":[{`)...), class: loop.ModelOther},
		"HTML":          {answer: respondEvents("<html>\n<body>502 Bad Gateway"), class: loop.ModelNetwork},
		"choices are no list": {
			answer: respondEvents(dataEvents(`{"choices":{"delta":1}}`)...), class: loop.ModelOther,
		},
		"deep": {answer: respondEvents(dataEvents(`{"choices":` + strings.Repeat("[", 1e5))...), class: loop.ModelOther},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, tt.answer)
			resp, _, err := wiretest.CallModel(t, e.newModel(t, enableStream), wiretest.NewRequest())
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != tt.class || failure.Status != tt.status || failure.Retryable != tt.retryable {
				t.Errorf("error %v, want class %s, status %d, retryable %v", err, tt.class, tt.status, tt.retryable)
			}
			if len(resp.Message.Blocks) != 0 {
				t.Errorf("a broken answer was used: %s", wiretest.Summarize(resp))
			}
			if len(e.Requests()) != 1 {
				t.Errorf("%d requests: an answer that had begun was requested again", len(e.Requests()))
			}
		})
	}
}

// respondThenAbort sends events and then aborts the connection.
func respondThenAbort(pieces ...string) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, r *http.Request) {
		respondEvents(append([]string{": hello"}, pieces...)...)(n, w, r)
		panic(http.ErrAbortHandler)
	}
}

func TestWhole(t *testing.T) {
	message := func(m string) string {
		return `{"id":"c1","model":"m-1","choices":[{"index":0,"message":` + m + `,"finish_reason":"stop"}]}`
	}
	for name, tt := range map[string]struct{ body, want string }{
		"text":           {body: message(`{"role":"assistant","content":"Hi."}`), want: "text:Hi."},
		"calls":          {body: message(`{"content":null,"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}},{"id":"b","function":{"name":"y","arguments":{"n":1}}}]}`), want: `x(a){} | y(b){"n":1}`},
		"same id twice":  {body: message(`{"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}},{"id":"a","function":{"name":"x","arguments":"{}"}}]}`), want: `x(a){} | x(a){}`},
		"no ids":         {body: message(`{"tool_calls":[{"function":{"name":"x"}},{"function":{"name":"y"}}]}`), want: `x() | y()`},
		"broken JSON":    {body: message(`{"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{\"a\": "}}]}`), want: `x(a){"a": `},
		"text and calls": {body: message(`{"content":"Let me see.","tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}}]}`), want: `text:Let me see. | x(a){}`},
	} {
		t.Run(name, func(t *testing.T) {
			for mode, change := range map[string]func(*openai.Options){"requested": nil, "stream requested": enableStream} {
				e := newEndpoint(t, wiretest.RespondJSON(http.StatusOK, tt.body))
				resp, text, err := wiretest.CallModel(t, e.newModel(t, change), wiretest.NewRequest())
				if err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				if diff := cmp.Diff(tt.want, wiretest.Summarize(resp)); diff != "" {
					t.Errorf("%s: answer (-want +got):\n%s", mode, diff)
				}
				if strings.HasPrefix(tt.want, "text:") && text == "" {
					t.Errorf("%s: no delta", mode)
				}
				if resp.ID != "c1" || resp.Model != "m-1" || resp.Finish != "stop" {
					t.Errorf("%s: %+v", mode, resp)
				}
			}
		})
	}
}

func TestBrokenWhole(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(int, http.ResponseWriter, *http.Request)
		class  loop.ErrorClass
	}{
		"no choices":             {answer: wiretest.RespondJSON(http.StatusOK, `{"choices":[]}`), class: loop.ModelOther},
		"not JSON":               {answer: wiretest.RespondJSON(http.StatusOK, `<html>`), class: loop.ModelOther},
		"a web page":             {answer: respondHTML, class: loop.ModelOther},
		"nothing":                {answer: wiretest.RespondJSON(http.StatusOK, ``), class: loop.ModelOther},
		"error under 200":        {answer: wiretest.RespondJSON(http.StatusOK, `{"error":{"message":"model is loading","code":503}}`), class: loop.ModelServer},
		"shorter than announced": {answer: respondShortBody, class: loop.ModelNetwork},
	} {
		t.Run(name, func(t *testing.T) {
			for mode, change := range map[string]func(*openai.Options){"whole": nil, "stream": enableStream} {
				e := newEndpoint(t, tt.answer)
				_, _, err := wiretest.CallModel(t, e.newModel(t, change), wiretest.NewRequest())
				if failure, ok := errors.AsType[*loop.ModelError](err); !ok || failure.Class != tt.class {
					t.Errorf("%s: error %v, want class %s", mode, err, tt.class)
				}
			}
		})
	}
}

// respondHTML sends a web page, like a server with a wrong base URL.
func respondHTML(_ int, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte("<!doctype html><title>Welcome</title>"))
}

// respondShortBody sends less than its Content-Length.
func respondShortBody(_ int, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	_, _ = w.Write([]byte(`{"choices":[{"message":{"content":"Hi`))
	panic(http.ErrAbortHandler)
}

func TestUsage(t *testing.T) {
	for name, tt := range map[string]struct {
		usage string
		want  limits.Usage
	}{
		"counted": {
			usage: `{"prompt_tokens":100,"completion_tokens":10,"total_tokens":110,"prompt_tokens_details":{"cached_tokens":60}}`,
			want:  limits.Usage{InputTokens: 40, CachedInputTokens: 60, OutputTokens: 10},
		},
		"no price":                  {usage: `{"prompt_tokens":100,"completion_tokens":10}`, want: limits.Usage{InputTokens: 100, OutputTokens: 10}},
		"the endpoint's price":      {usage: `{"prompt_tokens":1,"completion_tokens":1,"cost":0.000123}`, want: limits.Usage{InputTokens: 1, OutputTokens: 1, CostMicroUSD: new(int64(123))}},
		"missing":                   {usage: `null`},
		"nonsense":                  {usage: `{"prompt_tokens":-5,"completion_tokens":1e99,"prompt_tokens_details":[],"cost":"x"}`},
		"of another type":           {usage: `[1]`},
		"floats and texts":          {usage: `{"prompt_tokens":7.0,"completion_tokens":"3","prompt_tokens_details":null}`, want: limits.Usage{InputTokens: 7, OutputTokens: 3}},
		"more cached than there is": {usage: `{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":50}}`, want: limits.Usage{CachedInputTokens: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, respondEvents(append(dataEvents(deltaChunk(`{"content":"Hi."}`), finishChunk("stop"), `{"choices":[],"usage":`+tt.usage+`}`), "data: [DONE]")...))
			resp, _, err := wiretest.CallModel(t, e.newModel(t, enableStream), wiretest.NewRequest())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, resp.Usage); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
		})
	}
}
