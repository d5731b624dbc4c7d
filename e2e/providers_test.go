package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// providerCommand is the command that the model servers of [TestProviders] call. It
// appends, so that a second run is seen.
const providerCommand = "echo once >> result.txt"

// provider is a kind of model, and a server of its protocol. Each answer counts
// 100 tokens of input and 10 of output.
type provider struct {
	name string
	// profile is the profile's configuration but for model, price and address.
	profile string
	// base is the path of the profile's address, and path that of requests.
	base, path string
	// mediaType is that of answers; call has the command, and text the word Done.
	mediaType, call, text string
	// carries is a part of the second request: the result, in the form of the protocol.
	carries string
}

var providers = []provider{
	{
		name: "openai chat", profile: "provider: openai, api: chat, api_key_env: MODEL_KEY", base: "/v1", path: "/v1/chat/completions",
		mediaType: "text/event-stream",
		call: `data: {"model":"answering-1","choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"shell","arguments":"{\"command\":"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"` + providerCommand + `\"}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":10}}

data: [DONE]

`,
		text:    chatText("Done."),
		carries: `"tool_call_id":"call_1"`,
	},
	{
		name: "openai chat, calls in tags", profile: "provider: openai, api: chat, tool_protocol: tags, api_key_env: MODEL_KEY", base: "/v1", path: "/v1/chat/completions",
		mediaType: "text/event-stream",
		call:      chatText(`<tool_call>{\"name\":\"shell\",\"args\":{\"command\":\"` + providerCommand + `\"}}</tool_call>`),
		text:      chatText("Done."),
		carries:   `<tool_call>`,
	},
	{
		name: "openai responses", profile: "provider: openai, api: responses, api_key_env: MODEL_KEY", base: "/v1", path: "/v1/responses",
		mediaType: "text/event-stream",
		call:      responsesAnswer(`{"type":"function_call","id":"fc_1","call_id":"call_1","name":"shell","arguments":"{\"command\":\"` + providerCommand + `\"}","status":"completed"}`),
		text:      responsesAnswer(`{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Done."}]}`),
		carries:   `"function_call_output"`,
	},
	{
		name: "anthropic", profile: "provider: anthropic, api_key_env: MODEL_KEY", path: "/v1/messages",
		mediaType: "text/event-stream",
		call:      anthropicAnswer(`{"type":"tool_use","id":"toolu_1","name":"shell","input":{}}`, `{"type":"input_json_delta","partial_json":"{\"command\":\"`+providerCommand+`\"}"}`, "tool_use"),
		text:      anthropicAnswer(`{"type":"text","text":""}`, `{"type":"text_delta","text":"Done."}`, "end_turn"),
		carries:   `"tool_use_id":"toolu_1"`,
	},
	{
		name: "ollama", profile: "provider: ollama", path: "/api/chat",
		mediaType: "application/x-ndjson",
		call: `{"model":"answering-1","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"shell","arguments":{"command":"` + providerCommand + `"}}}]},"done":false}
{"model":"answering-1","message":{"role":"assistant","content":""},"done_reason":"stop","done":true,"prompt_eval_count":100,"eval_count":10}
`,
		text: `{"model":"answering-1","message":{"role":"assistant","content":"Done."},"done_reason":"stop","done":true,"prompt_eval_count":100,"eval_count":10}
`,
		carries: `"role":"tool"`,
	},
}

// chatText returns a stream of Chat Completions with a text, which is escaped as JSON.
func chatText(text string) string {
	return fmt.Sprintf(`data: {"model":"answering-1","choices":[{"index":0,"delta":{"role":"assistant","content":"%s"},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":10}}

data: [DONE]

`, text)
}

// responsesAnswer returns a stream of Responses with an item.
func responsesAnswer(item string) string {
	return fmt.Sprintf(`event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":%[1]s}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","model":"answering-1","status":"completed","output":[%[1]s],"usage":{"input_tokens":100,"output_tokens":10}}}

`, item)
}

// anthropicAnswer returns a stream of Messages with a block.
func anthropicAnswer(block, delta, reason string) string {
	return fmt.Sprintf(`event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"answering-1","stop_reason":null,"usage":{"input_tokens":100,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":%s}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":%s}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"%s"},"usage":{"output_tokens":10}}

event: message_stop
data: {"type":"message_stop"}

`, block, delta, reason)
}

// TestProviders runs one task with a profile of each kind. The server refuses the first
// request, then calls the shell, then answers: the command has run once, and the records
// name the profile, the model that answered, the attempt, the usage and its cost.
func TestProviders(t *testing.T) {
	backend := anyBackend(t)
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			base, received := p.serve(t)
			m := newMachine(t)
			m.env = append(m.env, "MODEL_KEY=key-of-the-profile")
			config := fmt.Sprintf("models: {tested: {%s, model: answering, base_url: '%s', price: {input: 1, output: 2}}}\n", p.profile, base)
			m.config(t, config)
			out := m.runTask(t, "--backend", backend, "--model", "tested", "write the file")
			out.want(t, 0)
			if got := treeOf(t, m.workspace)["result.txt"]; !strings.HasSuffix(got, " once\n") {
				t.Errorf("result.txt is %q, want one line", got)
			}
			if all := received(); len(all) != 3 || !strings.Contains(all[2], p.carries) {
				t.Errorf("%d requests, want 3; the last one lacks %s:\n%.3000s", len(all), p.carries, strings.Join(all, "\n"))
			}
			if got, want := out.records.modelCalls(t), []string{
				"failed: round 1 attempt 1 tested answering, status 503",
				"completed: round 1 attempt 2 tested answering-1, 100+10 tokens, 120 micro USD",
				"completed: round 2 attempt 1 tested answering-1, 100+10 tokens, 120 micro USD",
			}; !slices.Equal(got, want) {
				t.Errorf("model calls:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			total := decode[struct {
				Usage modelUsage `json:"usage"`
			}](t, out.records.of("session.ended")[0])
			if got := total.Usage.String(); got != "200+20 tokens, 240 micro USD" {
				t.Errorf("the session used %s", got)
			}
		})
	}
}

// TestStalledProviders has servers that send half of an answer with a call, and then
// nothing, or go on byte by byte. A run ends by the profile's timeouts, by its own time, and
// at once by Ctrl-C; the command never runs.
func TestStalledProviders(t *testing.T) {
	backend := anyBackend(t)
	for _, p := range providers {
		for name, tt := range map[string]struct {
			settings, timeout string
			interrupt, drips  bool
			status            int
			says              string
		}{
			"silent":             {settings: "idle_timeout: 1s", status: 1, says: "fell silent in the middle of its answer (1s)"},
			"drips":              {settings: "answer_timeout: 2s", drips: true, status: 1, says: "did not end its answer in time (2s)"},
			"the run's time":     {timeout: "2s", drips: true, status: 53, says: "time"},
			"interrupted":        {interrupt: true, status: 130},
			"drips, interrupted": {interrupt: true, drips: true, status: 130},
		} {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				stalled := make(chan struct{})
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Type", p.mediaType)
					half := len(p.call) * 2 / 3
					_, _ = io.WriteString(w, p.call[:half])
					w.(http.Flusher).Flush()
					close(stalled) // a second request panics
					for i := half; tt.drips && i < len(p.call); i++ {
						if _, err := io.WriteString(w, p.call[i:i+1]); err != nil {
							return
						}
						w.(http.Flusher).Flush()
						select {
						case <-r.Context().Done():
						case <-time.After(time.Second):
						}
					}
					<-r.Context().Done()
				}))
				t.Cleanup(server.Close)
				m := newMachine(t)
				m.env = append(m.env, "MODEL_KEY=key-of-the-profile")
				config := fmt.Sprintf("models: {tested: {%s, model: answering, base_url: '%s'}}\n", strings.Trim(p.profile+", "+tt.settings, ", "), server.URL+p.base)
				m.config(t, config)
				args := []string{"--backend", backend, "--model", "tested", "write the file"}
				if tt.timeout != "" {
					args = append([]string{"--timeout", tt.timeout}, args...)
				}
				run := m.start(t, taskArgs(m, args...)...)
				select {
				case <-stalled:
				case <-run.ended:
				}
				begun := time.Now()
				if tt.interrupt {
					time.Sleep(500 * time.Millisecond)
					run.signal(t, os.Interrupt)
				}
				out := run.wait(t, deadline)
				out.want(t, tt.status)
				took := time.Since(begun).Round(10 * time.Millisecond)
				t.Logf("it ended after %s", took)
				if took > 20*time.Second || tt.interrupt && took > 5*time.Second {
					t.Errorf("it ended after %s", took)
				}
				all := readRecords(t, out.stdout)
				if !strings.Contains(out.stderr, tt.says) {
					t.Errorf("it doesn't say %q:\n%s", tt.says, out.stderr)
				}
				if n := len(all.of("tool.called")); n > 0 || treeOf(t, m.workspace)["result.txt"] != "" {
					t.Errorf("%d calls ran", n)
				}
				if n := len(all.of("session.ended")); n != 1 {
					t.Errorf("%d records of the end", n)
				}
			})
		}
	}
}

// serve starts the provider's server, and returns the address of a profile and a function
// that returns the bodies of the requests so far.
func (p provider) serve(t *testing.T) (base string, received func() []string) {
	t.Helper()
	var mu sync.Mutex
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != p.path || r.Method != http.MethodPost {
			t.Errorf("request %s %s: %v", r.Method, r.URL.Path, err)
		}
		if key := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key"); strings.Contains(p.profile, "MODEL_KEY") && !strings.HasSuffix(key, "key-of-the-profile") {
			t.Errorf("the request has the key %q", key)
		}
		mu.Lock()
		bodies = append(bodies, string(body))
		n := len(bodies)
		mu.Unlock()
		if n == 1 {
			w.Header().Set("Retry-After", "0")
			http.Error(w, `{"error":{"message":"try again"}}`, http.StatusServiceUnavailable)
			return
		}
		answer := p.text
		if n == 2 {
			answer = p.call
		}
		w.Header().Set("Content-Type", p.mediaType)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	return server.URL + p.base, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(bodies)
	}
}

// modelUsage is the usage of records.
type modelUsage struct {
	Input  int64  `json:"input_tokens"`
	Output int64  `json:"output_tokens"`
	Cost   *int64 `json:"cost_micro_usd"`
}

// String returns the usage in words.
func (u modelUsage) String() string {
	cost := "unknown cost"
	if u.Cost != nil {
		cost = fmt.Sprintf("%d micro USD", *u.Cost)
	}
	return fmt.Sprintf("%d+%d tokens, %s", u.Input, u.Output, cost)
}

// modelCalls returns the ends of the requests to models, one line each.
func (all records) modelCalls(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, r := range all {
		kind, ok := strings.CutPrefix(r.Kind, "llm.call_")
		if !ok || kind == "started" {
			continue
		}
		c := decode[struct {
			Round   int    `json:"round"`
			Profile string `json:"profile"`
			Attempt int    `json:"attempt"`
			Model   struct {
				Name string `json:"model"`
			} `json:"model"`
			Usage  modelUsage `json:"usage"`
			Status int        `json:"http_status"`
		}](t, r)
		ending := c.Usage.String()
		if kind == "failed" {
			ending = fmt.Sprintf("status %d", c.Status)
		}
		out = append(out, fmt.Sprintf("%s: round %d attempt %d %s %s, %s", kind, c.Round, c.Attempt, c.Profile, c.Model.Name, ending))
	}
	return out
}
