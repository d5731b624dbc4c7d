package mockmodel_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/anthropic"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/tools"
)

var script = []mockmodel.Step{
	{
		Text: "I'll look at this: grüße, 世界, and more than one piece.", Calls: []mockmodel.Call{{Name: "shell", Arguments: `{"command":"ls -l"}`}},
		Usage: &limits.Usage{InputTokens: 100, CachedInputTokens: 20, OutputTokens: 30},
	},
	{Text: "Done.", Truncated: true},
	{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"0"}}, Message: "slow down"},
	{Text: "Half", Broken: true},
}

func start(t *testing.T, m *mockmodel.Model) string {
	t.Helper()
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	return s.URL
}

// TestAdapters reads the mock's answers with the loop's adapters, which are tested
// against transcripts of the providers.
func TestAdapters(t *testing.T) {
	for name, newModel := range map[string]func(loop.ModelOptions) (loop.Model, error){
		"anthropic": func(o loop.ModelOptions) (loop.Model, error) {
			return anthropic.New(anthropic.Options{ModelOptions: o})
		},
		"chat": func(o loop.ModelOptions) (loop.Model, error) {
			o.BaseURL += "/v1"
			return openai.New(openai.Options{ModelOptions: o, Stream: true})
		},
		"chat whole": func(o loop.ModelOptions) (loop.Model, error) {
			o.BaseURL += "/v1"
			return openai.New(openai.Options{ModelOptions: o})
		},
		"responses": func(o loop.ModelOptions) (loop.Model, error) {
			o.BaseURL += "/v1"
			return openai.New(openai.Options{ModelOptions: o, API: openai.Responses, Stream: true})
		},
		"responses whole": func(o loop.ModelOptions) (loop.Model, error) {
			o.BaseURL += "/v1"
			return openai.New(openai.Options{ModelOptions: o, API: openai.Responses})
		},
	} {
		t.Run(name, func(t *testing.T) {
			mock := &mockmodel.Model{Steps: script, Side: &mockmodel.Step{Text: "A title"}}
			model, err := newModel(loop.ModelOptions{Model: "mock-1", BaseURL: start(t, mock), APIKey: "test"})
			if err != nil {
				t.Fatal(err)
			}
			if c, ok := model.(interface{ Close() }); ok {
				t.Cleanup(c.Close)
			}
			req := loop.Request{
				Messages: []loop.Message{loop.NewText(loop.RoleUser, "Do it.")},
				Tools:    []tools.Definition{{Name: "shell", Description: "Runs.", InputSchema: []byte(`{"type":"object"}`)}},
			}
			got, err := model.Complete(t.Context(), req, func(loop.Delta) {})
			if err != nil {
				t.Fatal(err)
			}
			var text, call string
			for _, b := range got.Message.Blocks {
				if b.Text != nil {
					text = b.Text.Text
				}
				if b.ToolUse != nil {
					call = string(b.ToolUse.Name) + b.ToolUse.Raw
				}
			}
			if diff := cmp.Diff(*script[0].Usage, got.Usage); text != script[0].Text || call != `shell{"command":"ls -l"}` || got.Model != "mock-1" || diff != "" {
				t.Errorf("text %q, call %q, model %q, usage (-want +got):\n%s", text, call, got.Model, diff)
			}
			if got, err := model.Complete(t.Context(), req, func(loop.Delta) {}); err != nil || !got.Truncated || got.Usage.OutputTokens != 2 {
				t.Errorf("truncated answer: %+v, %v", got, err)
			}
			if _, err := model.Complete(t.Context(), req, func(loop.Delta) {}); err == nil || !strings.Contains(err.Error(), "slow down") {
				t.Errorf("refusal: %v", err)
			}
			if _, err := model.Complete(t.Context(), req, func(loop.Delta) {}); (err == nil) != strings.HasSuffix(name, "whole") {
				t.Errorf("broken stream: %v", err)
			}
			req.Tools = nil
			if got, err := model.Complete(t.Context(), req, func(loop.Delta) {}); err != nil || got.Message.Blocks[0].Text.Text != "A title" {
				t.Errorf("side answer: %+v, %v", got, err)
			}
			if n := len(mock.Requests()); n != 5 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestGemini checks the three forms of Gemini's answers.
func TestGemini(t *testing.T) {
	type chunk struct {
		Candidates []struct {
			Content struct {
				Parts []struct {
					Text         string
					FunctionCall *struct {
						Name string
						Args json.RawMessage
					}
				}
			}
			FinishReason string
		}
		UsageMetadata *struct{ PromptTokenCount, CachedContentTokenCount, CandidatesTokenCount int64 }
	}
	for _, action := range []string{"generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse"} {
		t.Run(action, func(t *testing.T) {
			url := start(t, &mockmodel.Model{Steps: script})
			res, err := http.Post(url+"/v1beta/models/mock-1:"+action, "application/json", strings.NewReader(`{"contents":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			var chunks []chunk
			switch {
			case strings.HasSuffix(action, "sse"):
				for lines := bufio.NewScanner(res.Body); lines.Scan(); {
					if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
						var c chunk
						if err := json.Unmarshal([]byte(data), &c); err != nil {
							t.Fatal(err)
						}
						chunks = append(chunks, c)
					}
				}
			case action == "generateContent":
				chunks = make([]chunk, 1)
				err = json.NewDecoder(res.Body).Decode(&chunks[0])
			default:
				err = json.NewDecoder(res.Body).Decode(&chunks)
			}
			if err != nil {
				t.Fatal(err)
			}
			var text, call string
			for _, c := range chunks {
				for _, p := range c.Candidates[0].Content.Parts {
					text += p.Text
					if p.FunctionCall != nil {
						call = p.FunctionCall.Name + string(p.FunctionCall.Args)
					}
				}
			}
			last := chunks[len(chunks)-1]
			if text != script[0].Text || call != `shell{"command":"ls -l"}` || last.Candidates[0].FinishReason != "STOP" || last.UsageMetadata == nil || last.UsageMetadata.PromptTokenCount != 120 {
				t.Errorf("text %q, call %q, last %+v", text, call, last)
			}
		})
	}
}

// TestEndless checks that an endless stream ends with its client.
func TestEndless(t *testing.T) {
	url := start(t, &mockmodel.Model{Steps: []mockmodel.Step{{Text: "again and again ", Endless: true}}})
	res, err := http.Post(url+"/v1/messages", "application/json", strings.NewReader(`{"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, res.Body, 1<<20); err != nil {
		t.Error(err)
	}
	res.Body.Close() // or the server doesn't close
}
