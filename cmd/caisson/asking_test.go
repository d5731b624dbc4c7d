package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestRunAsksModels runs caisson run with a model that asks others, by valid and
// invalid settings.
func TestRunAsksModels(t *testing.T) {
	const key = "opaque1of2the3model4asked"
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var req struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&req)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": "x", "object": "chat.completion", "model": req.Model,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": "So says " + req.Model + ".\u202e " + r.Header.Get("Authorization")}}},
			"usage":   map[string]any{"prompt_tokens": 100, "completion_tokens": 10},
		})
	}))
	defer server.Close()
	profile := func(name, more string) string {
		return fmt.Sprintf("  %s: {model: %s, base_url: %q, api_key_env: MY_KEY, max_retries: 0%s}\n", name, name, server.URL+"/v1", more)
	}
	models := "models:\n" + profile("fast", ", price: {input: 1, output: 2}") + profile("careful", ", price: {input: 1, output: 2}") + profile("free", "")
	permitted := "policy: {preset: ci, tools: {confer: auto}}\n"
	call := "  - calls: [{tool: confer, input: {question: so?, worker_tools: [verify, shell]}}]\n  - text: Done.\n"
	for name, tt := range map[string]struct {
		config string
		args   []string
		env    string
		status int
		errs   string
		asks   int64
	}{
		"asked":               {config: permitted + "workers: {models: [fast, careful], tools: [verify]}\n", asks: 2, errs: "confer fast, careful (with verify, shell): so?"},
		"limit of cost":       {config: permitted + "workers: {models: [fast]}\n", args: []string{"--max-cost-usd", "1"}, asks: 1},
		"off":                 {config: permitted, status: exitDone, errs: "not permitted"},
		"not permitted":       {config: "policy: {preset: ci}\nworkers: {models: [fast]}\n", errs: "The policy refuses tool"},
		"unknown model":       {config: permitted + "workers: {models: [fats]}\n", status: exitConfig, errs: "there is no model fats"},
		"named twice":         {config: permitted + "workers: {models: [fast, fast]}\n", status: exitConfig, errs: "the model fast is named twice"},
		"too many":            {config: permitted + "workers: {models: [" + strings.TrimSuffix(many(16), ", ") + "]}\n", status: exitConfig, errs: "at most 15"},
		"tool of an agent":    {config: permitted + "workers: {models: [fast], tools: [shell]}\n", status: exitConfig, errs: "can't be given the tool shell"},
		"no such mode":        {config: permitted + "workers: {models: [fast], cost_cap_mode: stern}\n", status: exitConfig, errs: "stern"},
		"cap without a price": {config: permitted + "workers: {models: [free], tools: [verify], cost_cap_usd: 1, cost_cap_mode: enforce}\n", status: exitConfig, errs: "the price of the model free is unknown"},
		"limit, no price":     {config: permitted + "workers: {models: [free]}\n", args: []string{"--max-cost-usd", "1"}, status: exitConfig, errs: "the price of the model free is unknown"},
		"negative cap":        {config: permitted + "workers: {models: [fast], cost_cap_usd: -1}\n", status: exitConfig, errs: "invalid amount of US dollars"},
		"unknown key":         {config: permitted + "workers: {model: fast}\n", status: exitConfig, errs: "model"},
		"no key":              {config: permitted + "workers: {models: [fast]}\n", env: "MY_KEY=", status: exitAuth, errs: "MY_KEY is not set"},
	} {
		t.Run(name, func(t *testing.T) {
			asked.Store(0)
			w := newWorld(t, call)
			w.configure(t, tt.config+models)
			w.env = append(w.env, "MY_KEY="+key)
			if tt.env != "" {
				w.env = append(w.env, tt.env)
			}
			status, _, errs := w.callTask(tt.args...)
			if status != tt.status || !strings.Contains(errs, tt.errs) || asked.Load() != tt.asks {
				t.Errorf("status %d, want %d; %d requests, want %d\n%s", status, tt.status, asked.Load(), tt.asks, errs)
			}
			if strings.ContainsAny(errs, "\u202e") || strings.Contains(errs, key) {
				t.Errorf("standard error %q", errs)
			}
			answers := 0
			_ = filepath.WalkDir(strings.TrimPrefix(w.env[0], "HOME="), func(path string, _ os.DirEntry, _ error) error {
				text, _ := os.ReadFile(path) // no text of a directory
				if answers += bytes.Count(text, []byte("So says ")); bytes.Contains(text, []byte(key)) {
					t.Errorf("%s has the key of a model that is asked", path)
				}
				return nil
			})
			if tt.asks > 0 && answers == 0 {
				t.Error("control: no record has the answers, which repeat the key")
			}
		})
	}

	// A workspace can't name models to ask, and a call needs a session's model.
	w := newWorld(t, call)
	w.configure(t, "workers: {models: [fast]}\n"+models)
	w.env = append(w.env, "MY_KEY="+key)
	if status, out, errs := w.call("tools", "ls", "confer"); status != exitDone || !strings.Contains(out, "class network") || !strings.Contains(out, `"fast"`) {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if status, _, errs := w.call("tools", "call", "--workspace", w.dir, "confer", `{"question": "so?"}`); status != exitUsage || !strings.Contains(errs, "caisson confer") {
		t.Errorf("status %d: %s", status, errs)
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "openai/m%d, ", i)
	}
	return b.String()
}
