package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/loop/worker"
)

// TestPanelCommands runs caisson confer and caisson coordinate with a server that
// answers by the model's name.
func TestPanelCommands(t *testing.T) {
	var pages atomic.Int64
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		pages.Add(1)
		_, _ = io.WriteString(w, "The page says 7.")
	}))
	defer page.Close()
	envelope := func(role string, answer string) string {
		return fmt.Sprintf(`{"role":%q,"summary":"s","claims":[],"confidence":1,"citations":[],"ballot":"agree"%s}`, role, answer)
	}
	answers := map[string]string{
		"yes": "Yes.\u202e", "no": "No.", "seven": "7", "p": envelope("proposer", ""), "c": envelope("critic", ""),
		"s": envelope("synthesizer", `,"answer":"Yes."`), "s7": envelope("synthesizer", `,"answer":7`),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		var req struct {
			Model    string
			Messages []struct{ Role, Content string }
		}
		_ = json.Unmarshal(data, &req)
		text, ok := answers[req.Model]
		if req.Model == "fetches" {
			text, ok = `<tool_call>{"name":"fetch","args":{"url":"`+page.URL+`"}}</tool_call>`, true
			if len(req.Messages) > 2 {
				text = "It says " + map[bool]string{true: "7.", false: "nothing."}[strings.Contains(req.Messages[3].Content, "The page says 7.")]
			}
		}
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"message":"no key"}}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": "x", "object": "chat.completion", "model": req.Model,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": text}}},
			"usage":   map[string]any{"prompt_tokens": 100, "completion_tokens": 10},
		})
	}))
	defer server.Close()
	dir := t.TempDir()
	var conf strings.Builder
	fmt.Fprintf(&conf, "model: yes\nfetch: {allow: [%q], private: {127.0.0.1: [127.0.0.1/32]}}\nmodels:\n", page.URL+"/")
	for _, name := range []string{"yes", "no", "seven", "p", "c", "s", "s7", "fetches", "gone"} {
		fmt.Fprintf(&conf, "  %q: {model: %q, base_url: %q, api_key_env: MY_KEY, max_retries: 0, price: {input: 1, output: 2}}\n", name, name, server.URL+"/v1")
	}
	conf.WriteString("profiles: {capped: {workers: {cost_cap_usd: 0.00001}}, enforced: {workers: {cost_cap_usd: 0.00001, cost_cap_mode: enforce}}}\n")
	config, schema := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "schema.json")
	for path, text := range map[string]string{config: strings.Replace(conf.String(), "model: yes\n", "model: \"yes\"\n", 1), schema: `{"type":"integer"}`} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for name, tt := range map[string]struct {
		args   []string
		stdin  string
		status int
		out    string
		errs   string
		not    string // must not be in the errors
	}{
		"one model":              {args: []string{"confer", "so?"}, out: "## yes\n\nYes.\u202e\n", errs: "yes: answered, 110 tokens"},
		"two models":             {args: []string{"confer", "--models", "yes,no", "so?"}, out: "## yes\n\nYes.\u202e\n\n## no\n\nNo.\n"},
		"one is gone":            {args: []string{"confer", "--models", "gone,no", "so?"}, out: "## no\n\nNo.\n", errs: "gone: failed"},
		"all are gone":           {args: []string{"confer", "--models", "gone", "so?"}, status: exitAuth, errs: "refused the key"},
		"question of a pipe":     {args: []string{"confer", "--models", "no", "-"}, stdin: "so?", out: "## no\n\nNo.\n"},
		"no question":            {args: []string{"confer"}, status: exitUsage, errs: "a question is needed"},
		"no such model":          {args: []string{"confer", "--models", "nope", "so?"}, status: exitConfig, errs: "no model nope"},
		"form":                   {args: []string{"confer", "--models", "yes,seven", "--output-schema", schema, "so?"}, out: `{"profile":"seven","answer":7}` + "\n", errs: "yes: invalid"},
		"no form":                {args: []string{"confer", "--models", "yes", "--output-schema", schema, "so?"}, status: exitFormat},
		"tool":                   {args: []string{"confer", "--models", "fetches", "--worker-tools", "fetch,shell", "so?"}, out: "## fetches\n\nIt says 7.\n", errs: "workers can't call shell; they can call fetch"},
		"cost cap":               {args: []string{"confer", "--models", "fetches", "--worker-tools", "fetch", "--worker-tool-cost-cap-usd", "0.00001", "so?"}, out: "## fetches\n\nIt says 7.\n", errs: "Ask the user how to go on"},
		"configured cap":         {args: []string{"confer", "--profile", "capped", "--models", "fetches", "--worker-tools", "fetch", "so?"}, out: "## fetches\n\nIt says 7.\n", errs: "Ask the user how to go on"},
		"no cap":                 {args: []string{"confer", "--models", "fetches", "--worker-tools", "fetch", "so?"}, out: "## fetches\n\nIt says 7.\n", not: "Ask the user"},
		"configured cap, off":    {args: []string{"confer", "--profile", "enforced", "--worker-tool-cost-cap-mode", "off", "--models", "fetches", "--worker-tools", "fetch", "so?"}, out: "## fetches\n\nIt says 7.\n", not: "cap"},
		"cap's mode":             {args: []string{"confer", "--worker-tool-cost-cap-mode", "stern", "so?"}, status: exitUsage, errs: "warn, enforce or off"},
		"limit":                  {args: []string{"confer", "--max-tokens", "500", "so?"}, status: exitLimit, errs: "tokens"},
		"coordinate":             {args: []string{"coordinate", "--proposer", "p", "--critics", "c,c", "--synthesizer", "s", "so?"}, out: "Yes.\n", errs: "critic, c: answered"},
		"coordinate by form":     {args: []string{"coordinate", "--proposer", "p", "--critics", "c", "--synthesizer", "s7", "--output-schema", schema, "so?"}, out: "7\n"},
		"coordinate, no form":    {args: []string{"coordinate", "--proposer", "p", "--critics", "c", "--synthesizer", "s", "--output-schema", schema, "so?"}, status: exitFormat, errs: "/answer"},
		"coordinate, no model":   {args: []string{"coordinate", "--proposer", "gone", "--critics", "c", "--synthesizer", "s", "so?"}, status: exitAuth},
		"coordinate, no critics": {args: []string{"coordinate", "--proposer", "p", "--synthesizer", "s", "so?"}, status: exitFormat, errs: "critic, yes: invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "  - text: done\n")
			w.app.stdin = strings.NewReader(tt.stdin)
			w.env = append(w.env, "CAISSON_CONFIG="+config, "MY_KEY=sk-test")
			status, out, errs := w.call(tt.args...)
			if status != tt.status || out != tt.out || !strings.Contains(errs, tt.errs) || tt.not != "" && strings.Contains(errs, tt.not) {
				t.Errorf("status %d, want %d\noutput %q\n%s", status, tt.status, out, errs)
			}
			if strings.Contains(errs, "\u202e") || strings.Contains(errs, "sk-test") {
				t.Errorf("standard error %q", errs)
			}
		})
	}
	if pages.Load() != 5 {
		t.Errorf("%d pages were fetched, want 5", pages.Load())
	}
	w := newWorld(t, "  - text: done\n")
	w.env = append(w.env, "CAISSON_CONFIG="+config, "MY_KEY=sk-test")
	status, out, errs := w.call("confer", "--json", "--models", "fetches,no", "--worker-tools", "fetch", "so?")
	var got worker.Conference
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != exitDone {
		t.Fatalf("status %d, %v: %s%s", status, err, out, errs)
	}
	if c := got.Answers[0].InnerToolCalls; len(c) != 1 || c[0].Status != worker.CallOK || got.Tools.HopBudget != 2 || got.Usage.PerProvider["openai"].Workers != 2 {
		t.Errorf("response %s", out)
	}
	for command, want := range map[string]string{"ls": "confer: so?", "show": "It says 7.", "verify": ""} {
		args := []string{"trace", command, "last"}
		if command == "ls" {
			args = args[:2]
		}
		if status, out, errs := w.call(args...); status != exitDone || !strings.Contains(out, want) || strings.Contains(out, "cut short") {
			t.Errorf("trace %s: status %d: %s%s", command, status, out, errs)
		}
	}
	traces, err := filepath.Glob(filepath.Join(w.env[0][len("HOME="):], ".local/state/caisson/sessions/*/trace.jsonl"))
	if err != nil || len(traces) != 1 {
		t.Fatalf("traces %v, %v", traces, err)
	}
	text, err := os.ReadFile(traces[0])
	if err != nil || strings.Count(string(text), `"worker.model_call"`) != 3 || strings.Count(string(text), `"worker.inner_call"`) != 1 || strings.Contains(string(text), "sk-test") {
		t.Errorf("%v: %s", err, text)
	}
}
