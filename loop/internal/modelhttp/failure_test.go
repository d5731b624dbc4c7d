package modelhttp

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/loop"
)

// TestUnparsedAnswers: failures that the model's own words caused are told apart from
// the endpoint's. The messages come from users' reports about servers.
func TestUnparsedAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   string
		want   bool
	}{
		"ollama, gpt-oss":    {500, `{"error":"error parsing tool call: raw='{\"input\":\"*** Begin Patch\\n*** End Patch\"}]', err=invalid character ']' after top-level value"}`, true},
		"ollama, qwen3coder": {500, `{"error":"XML syntax error on line 35: element \u003cparameter\u003e closed by \u003c/function\u003e"}`, true},
		"ollama, qwen3.5":    {500, `{"error":"expected element type \u003cfunction\u003e but have \u003cparameter\u003e"}`, true},
		"ollama, glm":        {500, `{"error":"failed to parse XML: XML syntax error on line 1: element \u003ctool_call\u003e closed by \u003c/arg_value\u003e"}`, true},
		"ollama, qwen3":      {500, `{"error":"failed to parse JSON: invalid character '}' after object key"}`, true},
		"llama.cpp":          {500, `{"error":{"code":500,"message":"Failed to parse input at pos 184: <tool_call>","type":"server_error"}}`, true},
		"llama.cpp, later":   {500, `{"error":{"code":500,"message":"Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error at line 1, column 2","type":"server_error"}}`, true},
		"llama.cpp, before":  {500, `{"error":{"code":500,"message":"Invalid diff: 'tee \\' not found at start of 'tee /'","type":"server_error"}}`, true},
		"through LiteLLM":    {500, `{"error":{"message":"litellm.InternalServerError: InternalServerError: Custom_openaiException - Failed to parse tool call arguments as JSON: unexpected end of input"}}`, true},
		"vllm, gpt-oss":      {500, `{"error":{"message":"Unexpected token 200002 while expecting start token 200006","type":"InternalServerError","param":null,"code":500}}`, true},
		"vllm, a header":     {500, `{"error":{"message":"unexpected tokens remaining in message header: Some(\"to=functions.web\")","type":"InternalServerError","code":500}}`, true},
		"a plain failure":    {500, `{"error":"Internal Server Error (ref: 3f380fc3)"}`, false},
		"no words":           {502, ``, false},
		"a crash":            {500, `{"error":"llama runner process has terminated: exit status 2"}`, false},
		"a gateway":          {502, `{"error":{"message":"upstream failed: could not read the response body"}}`, false},
		"a gateway's XML":    {502, `{"error":{"code":502,"message":"failed to parse XML: upstream sent HTML"}}`, false},
		"an overload":        {503, `{"error":{"code":503,"message":"failed to parse JSON: unexpected end of input"}}`, false},
		"a bad request":      {400, `{"error":{"message":"Failed to parse input at pos 3"}}`, false}, // the request's
		"groq":               {400, `{"error":{"message":"Failed to call a function. Please adjust your prompt.","type":"invalid_request_error","code":"tool_use_failed","failed_generation":"<function=x"}}`, true},
		"anthropic's filter": {400, `{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}`, true},
	} {
		if tt.status == http.StatusBadRequest {
			amid := (&Watcher{}).ModelError(&StreamError{Body: []byte(`{"type":"invalid_request_error","message":"x"}`), Begun: true})
			before := (&Watcher{}).ModelError(&StreamError{Body: []byte(`{"type":"invalid_request_error","message":"x"}`)})
			if !errors.As(amid, new(loop.AnswerError)) || errors.As(before, new(loop.AnswerError)) {
				t.Errorf("a bad request amid an answer: %v, before it: %v", amid, before)
			}
		}
		for where, err := range map[string]error{
			"refused":   (&Watcher{status: tt.status, body: []byte(tt.body)}).ModelError(errors.New("refused")),
			"in stream": (&Watcher{}).ModelError(&StreamError{Body: []byte(tt.body), Begun: true}),
		} {
			if where == "in stream" && tt.status < http.StatusInternalServerError {
				continue // the body has no status
			}
			if got := errors.As(err, new(loop.AnswerError)); got != tt.want {
				t.Errorf("%s, %s: the model's own: %t: %v", name, where, got, err)
			}
		}
	}
}

// TestBoundedBody: an answer may have exactly as many bytes as the limit.
func TestBoundedBody(t *testing.T) {
	for text, want := range map[string]error{"": nil, "1234": nil, "12345": ErrTooLarge, "1234567890": ErrTooLarge} {
		ctx, cancel := context.WithCancelCause(t.Context())
		b := &boundedBody{body: io.NopCloser(strings.NewReader(text)), left: 4, idle: time.Minute, end: time.NewTimer(time.Minute), ctx: ctx, cancel: cancel}
		got, err := io.ReadAll(b)
		if !errors.Is(err, want) || string(got) != text[:min(len(text), 4)] {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
		if _, err := b.Read(make([]byte, 1)); want != nil && !errors.Is(err, want) {
			t.Errorf("%q: read again: %v", text, err)
		}
		_ = b.Close()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	unlimited := &boundedBody{body: io.NopCloser(strings.NewReader("1234")), left: math.MaxInt64, idle: time.Minute, end: time.NewTimer(time.Minute), ctx: ctx, cancel: cancel}
	if got, err := io.ReadAll(unlimited); err != nil || string(got) != "1234" {
		t.Errorf("without a limit, it is read as %q, %v", got, err)
	}
	_ = unlimited.Close()
}
