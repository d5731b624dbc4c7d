// Package usage decodes the counts of tokens in providers' answers. Decoding never
// fails, because unreadable usage must not discard the answer: what can't be read is
// zero.
package usage

import (
	"cmp"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// Count is a number of tokens, decoded from an integer, a float or a string. Anything
// else is zero.
type Count int64

// UnmarshalJSON never fails.
func (c *Count) UnmarshalJSON(data []byte) error {
	*c = 0
	f, err := strconv.ParseFloat(strings.Trim(string(data), `"`), 64)
	if err == nil && f > 0 && f < 1e12 { // NaN compares false
		*c = Count(f)
	}
	return nil
}

// Max returns the larger of each count. A stream tells its counts several times, as
// sums so far.
func Max(a, b limits.Usage) limits.Usage {
	return limits.Usage{
		InputTokens: max(a.InputTokens, b.InputTokens), CachedInputTokens: max(a.CachedInputTokens, b.CachedInputTokens),
		CacheWriteTokens: max(a.CacheWriteTokens, b.CacheWriteTokens), CacheWriteHourTokens: max(a.CacheWriteHourTokens, b.CacheWriteHourTokens),
		OutputTokens: max(a.OutputTokens, b.OutputTokens),
		CostMicroUSD: cmp.Or(b.CostMicroUSD, a.CostMicroUSD),
	}
}

// Anthropic is the usage of Anthropic's Messages. Its counts are disjoint.
type Anthropic struct {
	anthropicCounts

	// Iterations are the parts of an answer for which the model was asked several
	// times, such as to compact the conversation. The counts beside them leave
	// compactions out, although they are charged.
	// Source: platform.claude.com/docs/en/build-with-claude/compaction.
	Iterations []anthropicCounts `json:"iterations"`
}

type anthropicCounts struct {
	Input      Count `json:"input_tokens"`
	CacheRead  Count `json:"cache_read_input_tokens"`
	CacheWrite Count `json:"cache_creation_input_tokens"`
	Output     Count `json:"output_tokens"`
	Kept       struct {
		Hour Count `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
}

// UnmarshalJSON never fails.
func (u *Anthropic) UnmarshalJSON(data []byte) error {
	type plain Anthropic
	_ = json.Unmarshal(data, (*plain)(u)) // skips what has the wrong type
	return nil
}

// Limits returns the usage in the terms of limits.
func (u Anthropic) Limits() limits.Usage {
	var parts limits.Usage
	for _, one := range u.Iterations {
		parts = parts.Plus(one.limits())
	}
	return Max(u.limits(), parts)
}

func (c anthropicCounts) limits() limits.Usage {
	return limits.Usage{
		InputTokens: int64(c.Input), CachedInputTokens: int64(c.CacheRead), CacheWriteTokens: int64(c.CacheWrite),
		CacheWriteHourTokens: int64(min(c.Kept.Hour, c.CacheWrite)), OutputTokens: int64(c.Output),
	}
}

// OpenAI is the usage of OpenAI's Chat Completions and compatible endpoints, and of
// Responses, which has other names for the counts. The input includes what was read
// from the cache or written to it.
type OpenAI struct {
	Prompt        Count        `json:"prompt_tokens"`
	Completion    Count        `json:"completion_tokens"`
	PromptDetails inputDetails `json:"prompt_tokens_details"`
	Input         Count        `json:"input_tokens"`
	Output        Count        `json:"output_tokens"`
	InputDetails  inputDetails `json:"input_tokens_details"`
	// Cost is in US dollars (from OpenRouter), a number or a string.
	Cost json.RawMessage `json:"cost"`
}

type inputDetails struct {
	Cached  Count `json:"cached_tokens"`
	Written Count `json:"cache_write_tokens"`
}

// UnmarshalJSON never fails.
func (u *OpenAI) UnmarshalJSON(data []byte) error {
	type plain OpenAI
	_ = json.Unmarshal(data, (*plain)(u)) // skips what has the wrong type
	return nil
}

// Limits returns the usage in the terms of limits, whose counts are disjoint.
func (u OpenAI) Limits() limits.Usage {
	prompt, details := cmp.Or(u.Prompt, u.Input), cmp.Or(u.PromptDetails, u.InputDetails)
	cached := min(details.Cached, prompt)
	written := min(details.Written, prompt-cached)
	out := limits.Usage{
		InputTokens: int64(prompt - cached - written), CachedInputTokens: int64(cached), CacheWriteTokens: int64(written),
		OutputTokens: int64(cmp.Or(u.Completion, u.Output)),
	}
	if usd, err := strconv.ParseFloat(strings.Trim(string(u.Cost), `"`), 64); err == nil && usd >= 0 && usd < 1e9 {
		out.CostMicroUSD = new(int64(math.Round(usd * 1e6)))
	}
	return out
}

// Gemini is the usage of Gemini's generateContent. The prompt includes what was cached;
// the candidates don't include the reasoning.
type Gemini struct {
	Prompt     Count `json:"promptTokenCount"`
	ToolPrompt Count `json:"toolUsePromptTokenCount"`
	Cached     Count `json:"cachedContentTokenCount"`
	Candidates Count `json:"candidatesTokenCount"`
	Thoughts   Count `json:"thoughtsTokenCount"`
}

// UnmarshalJSON never fails.
func (u *Gemini) UnmarshalJSON(data []byte) error {
	type plain Gemini
	_ = json.Unmarshal(data, (*plain)(u)) // skips what has the wrong type
	return nil
}

// Limits returns the usage in the terms of limits, whose counts are disjoint.
func (u Gemini) Limits() limits.Usage {
	cached := min(u.Cached, u.Prompt)
	return limits.Usage{InputTokens: int64(u.Prompt - cached + u.ToolPrompt), CachedInputTokens: int64(cached), OutputTokens: int64(u.Candidates + u.Thoughts)}
}
