package openai_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

func newResponses(t *testing.T, answer func(int, http.ResponseWriter, *http.Request), change func(*openai.Options)) (*endpoint, *openai.Model) {
	t.Helper()
	e := newEndpoint(t, answer)
	e.Path = "/v1/responses"
	return e, e.newModel(t, func(o *openai.Options) {
		o.API = openai.Responses
		if change != nil {
			change(o)
		}
	})
}

func completed(items string) string {
	return `{"id":"resp_1","model":"m-1","status":"completed","output":[` + items + `],"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":30},"output_tokens":7}}`
}

const (
	wireText  = `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hi."}]}`
	wireCall  = `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"shell","arguments":"{\"command\":\"ls\"}","status":"completed"}`
	wireThink = `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"ZW5j"}`
)

func TestResponsesRequest(t *testing.T) {
	e, m := newResponses(t, wiretest.RespondJSON(http.StatusOK, completed(`{"type":"message","phase":"final_answer","content":[{"text":"Done."}]}`)), func(o *openai.Options) {
		o.ReasoningEffort, o.Temperature = "high", new(0.5)
	})
	req := wiretest.NewConversation(loop.Thinking{Text: "hm", Signature: "rs_1", Redacted: "ZW5j"}, loop.Thinking{Text: "of another wire"})
	req.Messages = append(req.Messages, loop.NewText(loop.RoleAssistant, "Done."), loop.NewText(loop.RoleUser, "Go on."))
	for range 2 { // the second request follows an answer that named its phase
		if _, _, err := wiretest.CallModel(t, m, req); err != nil {
			t.Fatal(err)
		}
	}
	want := func(commentary, final string) map[string]any {
		var out map[string]any
		if err := json.Unmarshal([]byte(`{
		"model": "m", "store": false, "include": ["reasoning.encrypted_content"], "temperature": 0.5, "max_output_tokens": 77,
		"reasoning": {"effort": "high"}, "instructions": "Be good.",
		"input": [
			{"role": "user", "content": "Do <it> & more."},
			{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "ZW5j"},
			{"role": "assistant", "content": "Looking."`+commentary+`},
			{"type": "function_call", "call_id": "call_1", "name": "github__get_issue", "arguments": "{\"n\":1}"},
			{"type": "function_call", "call_id": "tu_2", "name": "made_up_", "arguments": "{}"},
			{"type": "function_call_output", "call_id": "call_1", "output": [
				{"type": "input_text", "text": "a picture:"}, {"type": "input_image", "image_url": "data:image/png;base64,cG5n"}]},
			{"type": "function_call_output", "call_id": "tu_2", "output": "no such tool"},
			{"role": "assistant", "content": "Done."`+final+`},
			{"role": "user", "content": "Go on."}
		],
		"tools": [{"type": "function", "name": "github__get_issue", "description": "Gets.", "strict": false, "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}]
	}`), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if diff := cmp.Diff(want("", ""), e.Request(t, 0).Body); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want(`, "phase": "commentary"`, `, "phase": "final_answer"`), e.Request(t, 1).Body); diff != "" {
		t.Errorf("second request (-want +got):\n%s", diff)
	}
}

func TestResponses(t *testing.T) {
	added := func(item string) string {
		return `{"type":"response.output_item.added","output_index":0,"item":` + item + `}`
	}
	done := func(item string) string {
		return `{"type":"response.output_item.done","output_index":0,"item":` + item + `}`
	}
	text := `{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hi."}`
	end := func(items string) string { return `{"type":"response.completed","response":` + completed(items) + `}` }
	for name, tt := range map[string]struct {
		events []string
		want   string
	}{
		"text":                    {dataEvents(`{"type":"response.created","response":{"status":"in_progress"}}`, text, done(wireText), end(wireText)), "text:Hi."},
		"text without deltas":     {dataEvents(end(wireText)), "text:Hi."},
		"refusal":                 {dataEvents(`{"type":"response.refusal.delta","delta":"No."}`, end(`{"type":"message","content":[{"type":"refusal","refusal":"No."}]}`)), "text:No."},
		"reasoning, text, call":   {dataEvents(text, end(wireThink+","+wireText+","+wireCall)), `thinking:hm/rs_1/ZW5j | text:Hi. | shell(call_1){"command":"ls"}`},
		"reasoning in content":    {dataEvents(end(`{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]}`)), "thinking:hm/rs_1/"},
		"empty reasoning":         {dataEvents(end(`{"type":"reasoning","id":"rs_1","summary":[]},` + wireCall)), `shell(call_1){"command":"ls"}`},
		"no output at the end":    {dataEvents(added(wireCall), done(wireCall), end("")), `shell(call_1){"command":"ls"}`},
		"an item done twice":      {dataEvents(done(wireCall), done(wireCall), end("")), `shell(call_1){"command":"ls"}`},
		"items without ids":       {dataEvents(done(`{"type":"function_call","name":"x","arguments":"{}"}`), done(`{"type":"function_call","name":"y","arguments":"{}"}`), end("")), "x(){} | y(){}"},
		"an item never done":      {dataEvents(done(wireCall), added(`{"type":"function_call","id":"fc_2","name":"rm","arguments":""}`), end("")), `shell(call_1){"command":"ls"}`},
		"arguments as an object":  {dataEvents(end(`{"type":"function_call","call_id":"a","name":"x","arguments":{"p":1}}`)), `x(a){"p":1}`},
		"no call_id":              {dataEvents(end(`{"type":"function_call","id":"fc_9","name":"x","arguments":"{}"}`)), "x(fc_9){}"},
		"cut in a call":           {dataEvents(`{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[{"type":"function_call","call_id":"a","name":"x","arguments":"{\"a\":","status":"incomplete"}]}}`), `x(a){"a": | cut`},
		"a call that is no whole": {dataEvents(end(`{"type":"function_call","call_id":"a","name":"x","arguments":"{}","status":"in_progress"}`)), `x(a){} | cut`},
		"filtered":                {dataEvents(text, `{"type":"response.incomplete","response":{"incomplete_details":{"reason":"content_filter"},"output":[`+wireText+`]}}`), "text:Hi. | cut"},
		"unknown events, items":   {dataEvents(`{"type":"response.novelty","x":[1]}`, `{}`, end(`null,{"type":"web_search_call","id":"ws_1"},`+wireText)), "text:Hi."},
		"comments":                {append([]string{": OPENROUTER PROCESSING", "event: response.completed\ndata: " + end(wireText)}, "data: [DONE]"), "text:Hi."},
		"after the end":           {dataEvents(end(wireText), `{"type":"error","message":"late"}`), "text:Hi."},
	} {
		t.Run(name, func(t *testing.T) {
			_, m := newResponses(t, respondEvents(tt.events...), enableStream)
			wiretest.CheckAnswer(t, m, tt.want)
		})
	}
}

func TestWholeResponse(t *testing.T) {
	_, m := newResponses(t, wiretest.RespondJSON(http.StatusOK, completed(wireThink+","+wireText+","+wireCall)), nil)
	resp, _, err := wiretest.CallModel(t, m, wiretest.NewRequest())
	if err != nil {
		t.Fatal(err)
	}
	want := loop.Response{
		Message: loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
			{Thinking: &loop.Thinking{Text: "hm", Signature: "rs_1", Redacted: "ZW5j"}},
			{Text: &loop.Text{Text: "Hi."}},
			{ToolUse: &loop.ToolUse{ProviderID: "call_1", Name: "shell", Raw: `{"command":"ls"}`}},
		}},
		Usage:  limits.Usage{InputTokens: 10, CachedInputTokens: 60, CacheWriteTokens: 30, OutputTokens: 7},
		Finish: "completed", ID: "resp_1", Model: "m-1",
	}
	if diff := cmp.Diff(want, resp); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// TestBrokenResponses checks that nothing of an incomplete answer is used, and
// failures' classes.
func TestBrokenResponses(t *testing.T) {
	done := `{"type":"response.output_item.done","output_index":0,"item":` + wireCall + `}`
	failed := func(code string) string {
		return `{"type":"response.failed","response":{"status":"failed","error":{"code":"` + code + `","message":"sorry"}}}`
	}
	for name, tt := range map[string]struct {
		answer    func(int, http.ResponseWriter, *http.Request)
		class     loop.ErrorClass
		retryable bool
	}{
		"ends after a call":         {answer: respondEvents(dataEvents(done)...), class: loop.ModelNetwork},
		"done without an end":       {answer: respondEvents(append(dataEvents(done), "data: [DONE]")...), class: loop.ModelNetwork},
		"connection cut":            {answer: respondThenAbort(dataEvents(done)...), class: loop.ModelNetwork},
		"failed":                    {answer: respondEvents(dataEvents(failed("server_error"))...), class: loop.ModelServer, retryable: true},
		"failed after a call":       {answer: respondEvents(dataEvents(done, failed("server_error"))...), class: loop.ModelServer},
		"rate limit":                {answer: respondEvents(dataEvents(failed("rate_limit_exceeded"))...), class: loop.ModelRateLimit, retryable: true},
		"too long":                  {answer: respondEvents(dataEvents(failed("context_length_exceeded"))...), class: loop.ModelContextOverflow},
		"error event":               {answer: respondEvents(dataEvents(done, `{"type":"error","code":"rate_limit_exceeded","message":"slow down","param":null}`)...), class: loop.ModelRateLimit},
		"error event with a member": {answer: respondEvents(dataEvents(`{"type":"error","error":{"type":"invalid_request_error","message":"no"}}`)...), class: loop.ModelInvalidRequest},
		"failed without a reason":   {answer: respondEvents(dataEvents(`{"type":"response.failed","response":{"status":"failed"}}`)...), class: loop.ModelOther},
		"no response at the end":    {answer: respondEvents(dataEvents(`{"type":"response.completed"}`)...), class: loop.ModelOther},
		"a partial call in between": {
			answer: respondEvents(dataEvents(`{"type":"response.completed","response":{"status":"completed","output":[{"type":"function_call","name":"x","arguments":"{}","status":"incomplete"},` + wireCall + `]}}`)...),
			class:  loop.ModelOther,
		},
		"not JSON":          {answer: respondEvents(dataEvents(`{"type":`)...), class: loop.ModelOther},
		"of the other API":  {answer: wiretest.RespondJSON(http.StatusOK, doneResponse), class: loop.ModelOther},
		"error under 200":   {answer: wiretest.RespondJSON(http.StatusOK, `{"error":{"message":"no","code":429}}`), class: loop.ModelRateLimit, retryable: true},
		"in the background": {answer: wiretest.RespondJSON(http.StatusOK, `{"status":"queued","output":[]}`), class: loop.ModelOther},
		"unknown path":      {answer: wiretest.RespondJSON(http.StatusNotFound, `{"error":{"message":"Not found"}}`), class: loop.ModelInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			e, m := newResponses(t, tt.answer, enableStream)
			resp, _, err := wiretest.CallModel(t, m, wiretest.NewRequest())
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != tt.class || failure.Retryable != tt.retryable {
				t.Errorf("error %v (%+v), want class %s", err, failure, tt.class)
			}
			if len(resp.Message.Blocks) > 0 || len(e.Requests()) != 1 {
				t.Errorf("answer %q, %d requests", wiretest.Summarize(resp), len(e.Requests()))
			}
		})
	}
}

// TestRefusedReasoning checks that reasoning which the endpoint refused is never sent
// again, and that none is requested from models that don't reason.
func TestRefusedReasoning(t *testing.T) {
	history := []loop.Message{
		loop.NewText(loop.RoleUser, "Hi."),
		{Role: loop.RoleAssistant, Blocks: []loop.Block{{Thinking: &loop.Thinking{Signature: "rs_1", Redacted: "ZW5j"}}, {Text: &loop.Text{Text: "Hi."}}}},
		loop.NewText(loop.RoleUser, "Go on."),
	}
	for name, tt := range map[string]struct {
		message   string
		refuse    int
		requests  int
		reasoning []bool // whether each request has reasoning
		include   []bool // and asks for it
	}{
		"stale":        {"The encrypted content for item rs_1 could not be verified.", 1, 2, []bool{true, false, false}, []bool{true, true, true}},
		"not reasoned": {"Encrypted content is not supported with this model.", 2, 3, []bool{true, false, false, false}, []bool{true, true, false, false}},
		"something":    {"Unknown parameter.", 1, 1, []bool{true}, []bool{true}},
	} {
		t.Run(name, func(t *testing.T) {
			e, m := newResponses(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if n <= tt.refuse {
					wiretest.RespondJSON(http.StatusBadRequest, `{"error":{"message":"`+tt.message+`"}}`)(n, w, r)
					return
				}
				wiretest.RespondJSON(http.StatusOK, completed(wireText))(n, w, r)
			}, nil)
			_, _, err := wiretest.CallModel(t, m, loop.Request{Messages: history})
			if (err != nil) != (tt.requests == 1) || len(e.Requests()) != tt.requests {
				t.Fatalf("%d requests, %v", len(e.Requests()), err)
			}
			if err == nil {
				if _, _, err := wiretest.CallModel(t, m, loop.Request{Messages: history}); err != nil {
					t.Fatal(err)
				}
			}
			var reasoning, include []bool
			for _, r := range e.Requests() {
				reasoning = append(reasoning, strings.Contains(r.Text, "ZW5j"))
				include = append(include, r.Body["include"] != nil)
			}
			if diff := cmp.Diff([][]bool{tt.reasoning, tt.include}, [][]bool{reasoning, include}); diff != "" {
				t.Errorf("requests with reasoning, and asking for it (-want +got):\n%s", diff)
			}
		})
	}
}
