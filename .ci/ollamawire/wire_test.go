// Package ollamawire compares the wire form of loop/ollama with the types of Ollama's own
// Go module.
package ollamawire

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ollama/ollama/api"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/ollama"
	"github.com/caisson-run/caisson/tools"
)

// exchange sends one request to a server that answers with values of Ollama's types, and
// returns the request as Ollama's types read it.
func exchange(t *testing.T, o ollama.Options, req loop.Request, answer ...any) (api.ChatRequest, loop.Response) {
	t.Helper()
	var got api.ChatRequest
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Errorf("the request is not one of Ollama's: %v", err)
		}
		for _, a := range answer {
			if err := json.NewEncoder(w).Encode(a); err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(server.Close)
	o.BaseURL = server.URL
	m, err := ollama.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	resp, err := m.Complete(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	return got, resp
}

func TestRequest(t *testing.T) {
	req := loop.Request{
		Messages: []loop.Message{
			loop.NewText(loop.RoleSystem, "Be good."),
			loop.NewText(loop.RoleUser, "Do it."),
			{Role: loop.RoleAssistant, Blocks: []loop.Block{
				{Thinking: &loop.Thinking{Text: "hm"}},
				{Text: &loop.Text{Text: "Looking."}},
				{ToolUse: &loop.ToolUse{ID: "tu_1", ProviderID: "call_1", Name: "github/get_issue", Input: []byte(`{"n":1,"deep":{"a":[true]}}`)}},
			}},
			{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: "tu_1", Content: []tools.Block{
				{Text: "a picture:"}, {Image: []byte("png"), MediaType: "image/png"},
			}}}}},
		},
		Tools: []tools.Definition{{Name: "github/get_issue", Description: "Gets.", InputSchema: []byte(
			`{"type":"object","properties":{"n":{"type":"integer","description":"number"},"tags":{"type":["array","null"],"items":{"type":"string"}}},"required":["n"]}`,
		)}},
		MaxOutputTokens: 77,
	}
	o := ollama.Options{ModelOptions: loop.ModelOptions{Model: "m", Temperature: new(0.5), ReasoningEffort: "high"}, Stream: true, ContextWindow: 8192}
	got, _ := exchange(t, o, req, api.ChatResponse{Message: api.Message{Role: "assistant", Content: "Done."}, Done: true})
	if got.Model != "m" || !*got.Stream || *got.Truncate || *got.Shift || got.Think.String() != "high" {
		t.Errorf("request %+v", got)
	}
	if diff := cmp.Diff(map[string]any{"num_ctx": 8192.0, "num_predict": 77.0, "temperature": 0.5}, got.Options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	options := api.DefaultOptions()
	if err := options.FromMap(got.Options); err != nil || options.NumCtx != 8192 || options.NumPredict != 77 {
		t.Errorf("options %+v, %v", options, err)
	}
	if len(got.Messages) != 5 || got.Messages[2].Thinking != "hm" || got.Messages[3].ToolName != "github__get_issue" ||
		got.Messages[3].ToolCallID != "call_1" || string(got.Messages[4].Images[0]) != "png" {
		t.Fatalf("messages %+v", got.Messages)
	}
	call := got.Messages[2].ToolCalls[0]
	if call.ID != "call_1" || call.Function.Name != "github__get_issue" || call.Function.Arguments.String() != `{"n":1,"deep":{"a":[true]}}` {
		t.Errorf("call %+v %s", call, call.Function.Arguments.String())
	}
	parameters, err := json.Marshal(got.Tools[0].Function.Parameters)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","required":["n"],"properties":{"n":{"type":"integer","description":"number"},"tags":{"type":["array","null"],"items":{"type":"string"}}}}`
	if got.Tools[0].Function.Name != "github__get_issue" || string(parameters) != want {
		t.Errorf("tool %s: %s", got.Tools[0].Function.Name, parameters)
	}
	for effort, on := range map[string]bool{"none": false} {
		o.ReasoningEffort = effort
		if got, _ := exchange(t, o, req, api.ChatResponse{Done: true}); got.Think.Bool() != on {
			t.Errorf("%s: think %v", effort, got.Think)
		}
	}
}

func TestAnswer(t *testing.T) {
	arguments := api.NewToolCallFunctionArguments()
	arguments.Set("command", "ls <dir>")
	arguments.Set("timeout", 5)
	at := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	piece := func(m api.Message) api.ChatResponse {
		return api.ChatResponse{Model: "m:8b", CreatedAt: at, Message: m}
	}
	last := piece(api.Message{Role: "assistant"})
	last.Done, last.DoneReason = true, "stop"
	last.Metrics = api.Metrics{TotalDuration: time.Second, PromptEvalCount: 26, EvalCount: 9}
	_, got := exchange(t, ollama.Options{ModelOptions: loop.ModelOptions{Model: "m"}, Stream: true}, loop.Request{Messages: []loop.Message{loop.NewText(loop.RoleUser, "Go.")}},
		piece(api.Message{Role: "assistant", Thinking: "hm"}),
		piece(api.Message{Role: "assistant", Content: "Look"}),
		piece(api.Message{Role: "assistant", Content: "ing."}),
		piece(api.Message{Role: "assistant", ToolCalls: []api.ToolCall{
			{ID: "call_1", Function: api.ToolCallFunction{Name: "shell", Arguments: arguments}},
			{Function: api.ToolCallFunction{Index: 1, Name: "read", Arguments: api.NewToolCallFunctionArguments()}},
		}}),
		last)
	want := loop.Response{
		Message: loop.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
			{Thinking: &loop.Thinking{Text: "hm"}},
			{Text: &loop.Text{Text: "Looking."}},
			{ToolUse: &loop.ToolUse{ProviderID: "call_1", Name: "shell", Raw: `{"command":"ls \u003cdir\u003e","timeout":5}`}},
			{ToolUse: &loop.ToolUse{Name: "read", Raw: `{}`}},
		}},
		Usage: limits.Usage{InputTokens: 26, OutputTokens: 9}, Finish: "stop", Model: "m:8b",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}
