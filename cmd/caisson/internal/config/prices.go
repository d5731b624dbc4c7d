package config

import (
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// knownModel has the published facts about a model. Prices are for ordinary requests,
// in US dollars per million tokens. A profile's own values win.
//
// Models that their provider no longer serves are left out. Remove these when OpenAI
// ends them: gpt-5, gpt-5-mini, gpt-5-nano and o3 on 2026-12-11, gpt-4.1, gpt-4.1-mini,
// gpt-4o and gpt-4o-mini on 2027-01-14, gpt-5.1 on 2027-04-01
// (developers.openai.com/api/docs/deprecations).
type knownModel struct {
	provider, name string
	price          limits.Price
	// contextWindow is the longest input if the provider bounds input separately.
	contextWindow int64
	// source is where price and contextWindow were read on 2026-11-23.
	source string
}

const (
	// openAISource is a catalogue that others maintain from OpenAI's pages, which were
	// not read. A copy of OpenAI's price list of 2025 agrees, but lacks gpt-5.1 and
	// gpt-5.2.
	openAISource = "github.com/anomalyco/models.dev, providers/openai/models and models/openai, commit f3fc6922 of 2026-07-02"
	// openAIPagesSource is OpenAI's own pages, in copies from October and November
	// 2026.
	openAIPagesSource = "developers.openai.com/api/docs/models, the page of the model"
	// sol61Source are notes of projects that cite OpenAI's page, which was not read.
	sol61Source = "docs.litellm.ai/blog/gpt_6_1_sol; github.com/amine123max/Codex-Manager, release 0.4.7 of 2026-09-30"
	// claudeSource is Anthropic's own pages, in copies from February to October 2026.
	claudeSource = "platform.claude.com/docs, about-claude/pricing and models/*/overview"
	// sonnet55Source has the price of cache reads since 2026-10-07. The copy of the
	// page models/sonnet-5-5/overview is older, and otherwise the same.
	sonnet55Source = "github.com/anomalyco/models.dev, providers/anthropic/models/claude-sonnet-5-5.toml, commit 482fb019; platform.claude.com/docs, models/sonnet-5-5/overview"
)

// claudePrice returns an Anthropic price. Cache writes for five minutes cost a
// quarter more than input.
func claudePrice(input, cached, output float64) limits.Price {
	return limits.Price{Input: input, CachedInput: cached, CacheWrite: 1.25 * input, Output: output}
}

// openAIPrice returns an OpenAI price whose cache writes cost as much as input.
func openAIPrice(input, cached, output float64) limits.Price {
	return limits.Price{Input: input, CachedInput: cached, CacheWrite: input, Output: output}
}

// openAIWritePrice returns an OpenAI price whose cache writes cost a quarter more
// than input. Above 272,000 tokens of input, input costs twice as much and output half
// as much again.
func openAIWritePrice(input, cached, output float64) limits.Price {
	p := openAIPrice(input, cached, output)
	p.CacheWrite = 1.25 * input
	return doubleLong(p)
}

// doubleLong adds OpenAI's prices for long requests.
func doubleLong(p limits.Price) limits.Price {
	p.Tiers = []limits.PriceTier{{
		Above: 272_000, Input: 2 * p.Input, CachedInput: 2 * p.CachedInput, CacheWrite: 2 * p.CacheWrite, Output: 1.5 * p.Output,
	}}
	return p
}

// knownModels are well-known models. Update prices, source and its date together.
var knownModels = []knownModel{
	{"openai", "gpt-6.2-sol", openAIWritePrice(2, 0.10, 10), 922_000, openAIPagesSource},
	{"openai", "gpt-6.1-terra", openAIWritePrice(1, 0.05, 5), 922_000, openAIPagesSource},
	{"openai", "gpt-6.1-sol", openAIWritePrice(2, 0.10, 10), 922_000, sol61Source},
	{"openai", "gpt-6-luna", openAIWritePrice(0.10, 0.01, 0.50), 922_000, openAIPagesSource},
	{"openai", "gpt-5.6-luna", openAIWritePrice(0.20, 0.02, 1.20), 922_000, openAIPagesSource},
	{"openai", "gpt-5.5", doubleLong(openAIPrice(5, 0.50, 30)), 922_000, openAISource},
	{"openai", "gpt-5.4", doubleLong(openAIPrice(2.50, 0.25, 15)), 922_000, openAISource},
	{"openai", "gpt-5.4-mini", openAIPrice(0.75, 0.075, 4.50), 272_000, openAISource},
	{"openai", "gpt-5", openAIPrice(1.25, 0.125, 10), 272_000, openAISource},
	{"openai", "gpt-5-mini", openAIPrice(0.25, 0.025, 2), 272_000, openAISource},
	{"openai", "gpt-5-nano", openAIPrice(0.05, 0.005, 0.40), 272_000, openAISource},
	{"openai", "gpt-5.1", openAIPrice(1.25, 0.125, 10), 272_000, openAISource},
	{"openai", "gpt-5.2", openAIPrice(1.75, 0.175, 14), 272_000, openAISource},
	{"openai", "gpt-4.1", openAIPrice(2, 0.50, 8), 1_047_576, openAISource},
	{"openai", "gpt-4.1-mini", openAIPrice(0.40, 0.10, 1.60), 1_047_576, openAISource},
	{"openai", "gpt-4o", openAIPrice(2.50, 1.25, 10), 128_000, openAISource},
	{"openai", "gpt-4o-mini", openAIPrice(0.15, 0.075, 0.60), 128_000, openAISource},
	{"openai", "o3", openAIPrice(2, 0.50, 8), 200_000, openAISource},
	{"anthropic", "claude-fable-5-1", claudePrice(10, 0.25, 50), 1_000_000, claudeSource},
	{"anthropic", "claude-opus-5-5", claudePrice(4, 0.20, 20), 1_000_000, claudeSource},
	{"anthropic", "claude-opus-5", claudePrice(5, 0.50, 25), 1_000_000, claudeSource},
	{"anthropic", "claude-opus-4-6", claudePrice(5, 0.50, 25), 1_000_000, claudeSource},
	{"anthropic", "claude-opus-4-5", claudePrice(5, 0.50, 25), 200_000, claudeSource},
	{"anthropic", "claude-sonnet-5-5", claudePrice(2, 0.10, 10), 1_000_000, sonnet55Source},
	{"anthropic", "claude-sonnet-5", claudePrice(2, 0.20, 10), 1_000_000, claudeSource},
	{"anthropic", "claude-sonnet-4-5", claudePrice(3, 0.30, 15), 200_000, claudeSource},
	{"anthropic", "claude-haiku-4-5", claudePrice(1, 0.10, 5), 200_000, claudeSource},
}

// findKnown finds a model. Its name may end in a snapshot's date, as in
// gpt-5-2025-08-07.
func findKnown(provider, name string) (knownModel, bool) {
	for _, k := range knownModels {
		rest, ok := strings.CutPrefix(name, k.name)
		if ok && k.provider == provider && (rest == "" || isSnapshot(rest)) {
			return k, true
		}
	}
	return knownModel{}, false
}

func isSnapshot(s string) bool {
	digits := strings.ReplaceAll(s, "-", "")
	if len(digits) != len("20250807") || strings.Trim(digits, "0123456789") != "" {
		return false
	}
	return s == "-"+digits || s == "-"+digits[:4]+"-"+digits[4:6]+"-"+digits[6:]
}

// addKnown sets known facts that the profile leaves open.
func (s *SelectedModel) addKnown() {
	k, ok := findKnown(s.Provider, s.Model)
	if !ok {
		return
	}
	if s.Price == nil {
		s.Price = &k.price
	}
	if s.ContextWindow == 0 {
		s.ContextWindow = k.contextWindow
	}
}
