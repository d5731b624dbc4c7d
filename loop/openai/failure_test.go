package openai_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   string
		class  loop.ErrorClass
	}{
		"wrong key":           {status: 401, body: `{"error":{"message":"Incorrect API key provided: sk-secret-key.","code":"invalid_api_key"}}`, class: loop.ModelAuth},
		"forbidden":           {status: 403, body: `{"error":{"message":"Country not supported"}}`, class: loop.ModelAuth},
		"rate limit":          {status: 429, body: `{"error":{"message":"Rate limit reached, tokens per min"}}`, class: loop.ModelRateLimit},
		"server":              {status: 500, body: `oops`, class: loop.ModelServer},
		"overloaded":          {status: 529, body: ``, class: loop.ModelServer},
		"timeout":             {status: 408, body: ``, class: loop.ModelServer},
		"openai overflow":     {status: 400, body: `{"error":{"message":"This model's maximum context length is 8192 tokens.","code":"context_length_exceeded"}}`, class: loop.ModelContextOverflow},
		"vllm overflow":       {status: 400, body: `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000","type":"BadRequestError","code":400}`, class: loop.ModelContextOverflow},
		"llama.cpp overflow":  {status: 400, body: `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}`, class: loop.ModelContextOverflow},
		"above the rate":      {status: 429, body: `{"error":{"message":"Request too large for gpt-5 in organization x on tokens per min (TPM): Limit 30000, Requested 40000. The input or output tokens must be reduced in order to run successfully.","type":"tokens","code":"rate_limit_exceeded"}}`, class: loop.ModelContextOverflow},
		"too large":           {status: 413, body: `<html>413</html>`, class: loop.ModelContextOverflow},
		"bad request":         {status: 400, body: `{"error":{"message":"tool_choice is not supported"}}`, class: loop.ModelInvalidRequest},
		"no such model":       {status: 404, body: `{"error":"model 'm' not found"}`, class: loop.ModelInvalidRequest},
		"error without words": {status: 422, body: ``, class: loop.ModelInvalidRequest},
		"huge and not JSON":   {status: 400, body: strings.Repeat("x\x00\x1b[31m", 100_000), class: loop.ModelInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			for mode, stream := range map[string]bool{"whole": false, "stream": true} {
				e := newEndpoint(t, wiretest.RespondJSON(tt.status, tt.body))
				_, _, err := wiretest.CallModel(t, e.newModel(t, func(o *openai.Options) { o.Stream = stream }), wiretest.NewRequest())
				failure, ok := errors.AsType[*loop.ModelError](err)
				if !ok || failure.Class != tt.class || failure.Status != tt.status {
					t.Fatalf("%s: error %v, want class %s", mode, err, tt.class)
				}
				if text := err.Error(); strings.Contains(text, "sk-secret-key") || len(text) > 2000 || strings.ContainsAny(text, "\x00\x1b") {
					t.Errorf("%s: error %q", mode, text)
				}
				if failure.Visible {
					t.Errorf("%s: the endpoint's message is visible to users", mode)
				}
				if len(e.Requests()) != 1 {
					t.Errorf("%s: %d requests without retries", mode, len(e.Requests()))
				}
			}
		})
	}
}

// TestRetryable checks which refusals the loop may retry, and that the adapter itself
// retries none.
func TestRetryable(t *testing.T) {
	for name, tt := range map[string]struct {
		status        int
		header, value string
		body          string
		class         loop.ErrorClass
		retryable     bool
		after         time.Duration
	}{
		"rate limit":            {status: 429, class: loop.ModelRateLimit, retryable: true},
		"seconds":               {status: 429, header: "Retry-After", value: "3600", class: loop.ModelRateLimit, retryable: true, after: time.Hour},
		"milliseconds":          {status: 503, header: "Retry-After-Ms", value: "5", class: loop.ModelServer, retryable: true, after: 5 * time.Millisecond},
		"ages":                  {status: 429, header: "Retry-After", value: "99999999999999999999", class: loop.ModelRateLimit, retryable: true, after: math.MaxInt32 * time.Second},
		"a moment that is over": {status: 503, header: "Retry-After", value: "Fri, 31 Dec 1999 23:59:59 GMT", class: loop.ModelServer, retryable: true},
		"no delay":              {status: 503, header: "Retry-After", value: "soon", class: loop.ModelServer, retryable: true},
		"negative":              {status: 503, header: "Retry-After", value: "-5", class: loop.ModelServer, retryable: true},
		"server":                {status: 500, class: loop.ModelServer, retryable: true},
		"overloaded":            {status: 529, class: loop.ModelServer, retryable: true},
		"timeout":               {status: 408, class: loop.ModelServer, retryable: true},
		"conflict":              {status: 409, class: loop.ModelServer, retryable: true},
		"told not to":           {status: 500, header: "X-Should-Retry", value: "false", class: loop.ModelServer},
		"told to":               {status: 400, header: "X-Should-Retry", value: "true", class: loop.ModelInvalidRequest, retryable: true},
		"quota that is used up": {status: 429, body: `{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}`, class: loop.ModelRateLimit},
		"bad request":           {status: 400, header: "Retry-After", value: "1", class: loop.ModelInvalidRequest, after: time.Second},
		"bad key":               {status: 401, class: loop.ModelAuth},
		"too long":              {status: 413, class: loop.ModelContextOverflow},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if tt.header != "" {
					w.Header().Set(tt.header, tt.value)
				}
				wiretest.RespondJSON(tt.status, tt.body)(n, w, r)
			})
			_, _, err := wiretest.CallModel(t, e.newModel(t, enableStream), wiretest.NewRequest())
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != tt.class || failure.Retryable != tt.retryable || failure.RetryAfter != tt.after {
				t.Errorf("error %#v, want class %s, retryable %v, after %v", failure, tt.class, tt.retryable, tt.after)
			}
			if errors.Is(err, loop.ErrQuota) != (name == "quota that is used up") {
				t.Errorf("error %#v is one of a quota, or should be", failure)
			}
			if len(e.Requests()) != 1 {
				t.Errorf("%d requests", len(e.Requests()))
			}
		})
	}
}

// TestUnreachable checks that the error names the endpoint and the cause.
func TestUnreachable(t *testing.T) {
	const address = "127.0.0.1:1" // the kernel never assigns this port
	m, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "http://" + address + "/v1", APIKey: "sk-secret-key"}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	_, _, err = wiretest.CallModel(t, m, wiretest.NewRequest())
	failure, ok := errors.AsType[*loop.ModelError](err)
	if !ok || failure.Class != loop.ModelNetwork || !failure.Visible || !failure.Retryable {
		t.Fatalf("error %v", err)
	}
	if text := failure.Err.Error(); !strings.Contains(text, address) || !strings.Contains(text, "connection refused") || strings.Contains(text, "sk-secret") {
		t.Errorf("error %q", text)
	}
}

func TestSilence(t *testing.T) {
	for name, tt := range map[string]struct {
		answer    func(release chan struct{}) func(int, http.ResponseWriter, *http.Request)
		says      string
		retryable bool
	}{
		"before headers": {
			answer: func(release chan struct{}) func(int, http.ResponseWriter, *http.Request) {
				return func(int, http.ResponseWriter, *http.Request) { <-release }
			},
			says: "did not begin to answer", retryable: true,
		},
		"in the answer": {
			answer: func(release chan struct{}) func(int, http.ResponseWriter, *http.Request) {
				return func(n int, w http.ResponseWriter, r *http.Request) {
					respondEvents(dataEvents(deltaChunk(`{"content":"Hel"}`))...)(n, w, r)
					<-release
				}
			},
			says: "fell silent",
		},
		"in a refusal": {
			answer: func(release chan struct{}) func(int, http.ResponseWriter, *http.Request) {
				return func(_ int, w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusBadRequest)
					_, _ = w.Write([]byte(`{"error`))
					w.(http.Flusher).Flush()
					<-release
				}
			},
			says: "400",
		},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			e := newEndpoint(t, tt.answer(release))
			defer close(release)
			m := e.newModel(t, func(o *openai.Options) {
				o.Stream, o.IdleTimeout = true, 100*time.Millisecond
				if name == "before headers" {
					o.HeaderTimeout = 100 * time.Millisecond
				}
			})
			_, _, err := wiretest.CallModel(t, m, wiretest.NewRequest())
			if failure, ok := errors.AsType[*loop.ModelError](err); !ok || !strings.Contains(err.Error(), tt.says) || failure.Retryable != tt.retryable {
				t.Errorf("error %v, want one with %q, retryable: %v", err, tt.says, tt.retryable)
			}
			if len(e.Requests()) != 1 {
				t.Errorf("%d requests", len(e.Requests()))
			}
		})
	}
}

// TestHugeAnswers checks that answers larger than the limits are refused.
func TestHugeAnswers(t *testing.T) {
	megabyte := bytes.Repeat([]byte("a"), 1<<20)
	flood := func(before, between string, n int) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte(before))
			for range n {
				if _, err := w.Write(append(megabyte, between...)); err != nil || r.Context().Err() != nil {
					return
				}
			}
		}
	}
	for name, tt := range map[string]struct {
		answer func(int, http.ResponseWriter, *http.Request)
		limit  int64
	}{
		"one line":   {answer: flood("data: ", "", 200)},
		"many lines": {answer: flood("", "\n", 200)},
		"comments":   {answer: flood(": ", "\n: ", 200)},
		"50 MB in one event": {answer: func(n int, w http.ResponseWriter, r *http.Request) {
			respondEvents("data: "+deltaChunk(`{"content":"`+strings.Repeat(string(megabyte), 50)+`"}`), "data: "+finishChunk("stop"))(n, w, r)
		}, limit: 64 << 20},
		"50 MB at once": {answer: wiretest.RespondJSON(http.StatusOK, `{"choices":[{"message":{"content":"`+strings.Repeat(string(megabyte), 50)+`"}}]}`), limit: 64 << 20},
		"50 MB of arguments": {answer: func(n int, w http.ResponseWriter, r *http.Request) {
			for range 50 {
				respondEvents("data: "+deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"`+string(megabyte)+`"}}]}`))(n, w, r)
			}
		}, limit: 64 << 20},
		"text": {answer: func(n int, w http.ResponseWriter, r *http.Request) {
			piece := "data: " + deltaChunk(`{"content":"`+string(megabyte)+`"}`)
			for range 200 {
				respondEvents(piece)(n, w, r)
			}
		}},
		"whole": {answer: func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for range 200 {
				if _, err := w.Write(megabyte); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, tt.answer)
			_, _, err := wiretest.CallModel(t, e.newModel(t, func(o *openai.Options) { o.Stream, o.MaxResponseBytes = true, max(tt.limit, 8<<20) }), wiretest.NewRequest())
			if failure, ok := errors.AsType[*loop.ModelError](err); !ok || failure.Class != loop.ModelOther || !strings.Contains(err.Error(), "larger than allowed") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestCancel checks that a cancelled call ends at once with the cause, not with a
// ModelError.
func TestCancel(t *testing.T) {
	why := errors.New("interrupted")
	for name, begin := range map[string]bool{"waiting": false, "in the answer": true} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			ctx, cancel := context.WithCancelCause(t.Context())
			e := newEndpoint(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if begin {
					respondEvents(dataEvents(deltaChunk(`{"content":"Hel"}`))...)(n, w, r)
				} else {
					cancel(why)
				}
				<-release
			})
			defer close(release)
			_, err := e.newModel(t, enableStream).Complete(ctx, wiretest.NewRequest(), func(loop.Delta) { cancel(why) })
			if _, isFailure := errors.AsType[*loop.ModelError](err); !errors.Is(err, why) || isFailure {
				t.Errorf("error %v", err)
			}
			if len(e.Requests()) != 1 {
				t.Errorf("%d requests", len(e.Requests()))
			}
		})
	}
}

func TestConcurrentCalls(t *testing.T) {
	e := newEndpoint(t, func(n int, w http.ResponseWriter, r *http.Request) {
		respondEvents(dataEvents(deltaChunk(fmt.Sprintf(`{"content":"Hi %d."}`, n)), finishChunk("stop"))...)(n, w, r)
	})
	m := e.newModel(t, enableStream)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			resp, text, err := wiretest.CallModel(t, m, wiretest.NewRequest())
			if err != nil || wiretest.Summarize(resp) != "text:"+text {
				t.Errorf("answer %q, deltas %q, error %v", wiretest.Summarize(resp), text, err)
			}
		})
	}
	all.Wait()
}
