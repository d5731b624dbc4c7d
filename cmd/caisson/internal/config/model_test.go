package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

func TestFallbackProfiles(t *testing.T) {
	environ := []string{"OPENAI_API_KEY=k"}
	for name, tt := range map[string]struct {
		fallback string
		want     []string
		err      string
	}{
		"none":        {"", []string{"main"}, ""},
		"a profile":   {"[other]", []string{"main", "other"}, ""},
		"a model":     {"[openai/gpt-5-mini]", []string{"main", "openai/gpt-5-mini"}, ""},
		"in order":    {"[openai/b, other, openai/a]", []string{"main", "openai/b", "other", "openai/a"}, ""},
		"not further": {"[chain]", []string{"main", "chain"}, ""},
		"itself":      {"[main]", nil, "the model main is asked already"},
		"twice":       {"[other, other]", nil, "the model other is asked already"},
		"unknown":     {"[none]", nil, "there is no model none (there are chain, main, other)"},
		"no provider": {"[acme/x]", nil, "there is no provider acme"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "model: main\nmodels:\n  other: {model: x}\n  chain: {model: y, fallback: [other]}\n  main: {model: gpt-5"
			if tt.fallback != "" {
				text += ", fallback: " + tt.fallback
			}
			c, err := Load(Options{Path: write(t, "config.yaml", text+"}\n")})
			if err != nil {
				t.Fatal(err)
			}
			models, err := c.SelectModels(environ)
			if got, ok := errors.AsType[*Error](err); tt.err != "" && (!ok || got.Message != tt.err || got.Where != "models.main.fallback") {
				t.Errorf("error %v, want %s", err, tt.err)
			}
			var got []string
			for _, m := range models {
				got = append(got, m.Profile)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestProfileHeadersAndKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		profile string
		want    SelectedModel
		err     string
	}{
		"headers":          {"headers: {X-Title: tests, X-Secret: $TOKEN}", SelectedModel{ModelOptions: loop.ModelOptions{Headers: map[string]string{"X-Title": "tests", "X-Secret": "s3"}, APIKey: "k"}, SecretHeaders: []string{"TOKEN"}, KeyEnv: "OPENAI_API_KEY"}, ""},
		"unset variable":   {"headers: {X-Secret: $NONE}", SelectedModel{}, "the variable NONE is not set"},
		"bad name":         {`headers: {"X Y": a}`, SelectedModel{}, "the header is not valid"},
		"two lines":        {`headers: {X-Y: "a\r\nHost: b"}`, SelectedModel{}, "the header is not valid"},
		"variable's lines": {"headers: {X-Y: $LINES}", SelectedModel{}, "the header is not valid"},
		"ours":             {"headers: {content-length: 5}", SelectedModel{}, "the header is set by the program itself"},
		"effort":           {"reasoning_effort: low", SelectedModel{ModelOptions: loop.ModelOptions{ReasoningEffort: "low", APIKey: "k"}, KeyEnv: "OPENAI_API_KEY"}, ""},
		"key command":      {"api_key_command: [pass, show, x]", SelectedModel{KeyCommand: []string{"pass", "show", "x"}}, ""},
		"elsewhere":        {"api_key_command: [pass], base_url: 'https://h/v1'", SelectedModel{KeyCommand: []string{"pass"}, ModelOptions: loop.ModelOptions{BaseURL: "https://h/v1"}}, ""},
		"no such api":      {"provider: anthropic, api: chat", SelectedModel{}, "the provider anthropic has one API only"},
		"empty command":    {"api_key_command: []", SelectedModel{}, "it names no program"},
		"two keys":         {"api_key_command: [pass], api_key_env: X", SelectedModel{}, "the model has api_key_env too"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Load(Options{Path: write(t, "config.yaml", "model: m\nmodels: {m: {model: x, "+tt.profile+"}}\n")})
			if err != nil {
				t.Fatal(err)
			}
			models, err := c.SelectModels([]string{"OPENAI_API_KEY=k", "TOKEN=s3", "LINES=a\nb"})
			if tt.err != "" {
				if got, ok := errors.AsType[*Error](err); !ok || got.Message != tt.err {
					t.Errorf("error %v, want %s", err, tt.err)
				}
				return
			}
			tt.want.Profile, tt.want.Provider, tt.want.Model, tt.want.KeyNeeded = "m", "openai", "x", true
			tt.want.API = "responses"
			if tt.want.BaseURL != "" {
				tt.want.API = "chat"
			}
			if diff := cmp.Diff([]SelectedModel{tt.want}, models); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestOllamaURL(t *testing.T) {
	const own = "http://127.0.0.1:11434"
	for host, want := range map[string]string{
		"": own, " ": own, "0.0.0.0": own, "0.0.0.0:11434": own, "[::]:11434": own, ":11434": own,
		"127.0.0.1:8080": "http://127.0.0.1:8080", "gpu": "http://gpu:11434", "http://gpu": "http://gpu:11434", "[fd00::1]": "http://[fd00::1]:11434",
		"https://ollama.com": "https://ollama.com:443", "https://gpu:8443/ollama": "https://gpu:8443/ollama",
		"http://a b": "http://a b",
	} {
		if got := ollamaURL(host, own); got != want {
			t.Errorf("OLLAMA_HOST=%s is %s, want %s", host, got, want)
		}
	}
}

// TestKnownModels: each known model has a complete price with its source, and only
// snapshots share it. The control is a model with another name.
func TestKnownModels(t *testing.T) {
	for _, k := range knownModels {
		p := k.price
		if p.Input <= 0 || p.Output <= p.Input || p.CachedInput <= 0 || p.CachedInput > p.Input || p.CacheWrite < p.Input || k.source == "" || k.contextWindow <= 0 {
			t.Errorf("%+v", k)
		}
		for _, suffix := range []string{"", "-2025-08-07", "-20250807"} {
			if got, ok := findKnown(k.provider, k.name+suffix); !ok || got.name != k.name {
				t.Errorf("%s is %+v", k.name+suffix, got)
			}
		}
		for _, suffix := range []string{"-pro", "-2025", "-2025-0807", "20250807", "-20250807x"} {
			if got, ok := findKnown(k.provider, k.name+suffix); ok && got.name == k.name {
				t.Errorf("%s is taken for %s", k.name+suffix, k.name)
			}
		}
	}
	if _, ok := findKnown("openai", "gpt-5-unknown"); ok {
		t.Error("a model with an unknown name has a price")
	}
	for name, want := range map[string]limits.Price{
		"gpt-5": {Input: 1.25, CachedInput: 0.125, CacheWrite: 1.25, Output: 10},
		"gpt-6.2-sol": {
			Input: 2, CachedInput: 0.10, CacheWrite: 2.50, Output: 10,
			Tiers: []limits.PriceTier{{Above: 272_000, Input: 4, CachedInput: 0.20, CacheWrite: 5, Output: 15}},
		},
	} {
		k, _ := findKnown("openai", name)
		if diff := cmp.Diff(want, k.price); diff != "" {
			t.Errorf("price of %s (-want +got):\n%s", name, diff)
		}
	}
	for _, model := range defaultModels {
		provider, name, _ := strings.Cut(model, "/")
		if _, ok := findKnown(provider, name); !ok {
			t.Errorf("the default model %s has no known price", model)
		}
	}
}
