package openai

import (
	"cmp"
	"encoding/json"
	"math"
	"strconv"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// usage is an endpoint's usage. Its counts have other names in the Responses API.
type usage struct {
	Prompt       modelhttp.TokenCount `json:"prompt_tokens"`
	Completion   modelhttp.TokenCount `json:"completion_tokens"`
	Details      promptDetails        `json:"prompt_tokens_details"`
	Input        modelhttp.TokenCount `json:"input_tokens"`
	Output       modelhttp.TokenCount `json:"output_tokens"`
	InputDetails promptDetails        `json:"input_tokens_details"`
	// Cost is in US dollars (from OpenRouter), or "".
	Cost modelhttp.LooseString `json:"cost"`
}

// promptDetails counts the prompt's tokens read from the cache and written to it.
type promptDetails struct {
	Cached  modelhttp.TokenCount `json:"cached_tokens"`
	Written modelhttp.TokenCount `json:"cache_write_tokens"`
}

// UnmarshalJSON never fails: unreadable usage must not discard the answer.
func (u *usage) UnmarshalJSON(data []byte) error {
	type plain usage
	_ = json.Unmarshal(data, (*plain)(u)) // skips what has the wrong type
	return nil
}

// limitsUsage converts to disjoint counts.
func (u usage) limitsUsage() limits.Usage {
	prompt, details := cmp.Or(u.Prompt, u.Input), cmp.Or(u.Details, u.InputDetails)
	cached := min(details.Cached, prompt)
	written := min(details.Written, prompt-cached)
	out := limits.Usage{
		InputTokens: int64(prompt - cached - written), CachedInputTokens: int64(cached), CacheWriteTokens: int64(written),
		OutputTokens: int64(cmp.Or(u.Completion, u.Output)),
	}
	if usd, err := strconv.ParseFloat(string(u.Cost), 64); err == nil && usd >= 0 && usd < 1e9 {
		out.CostMicroUSD = new(int64(math.Round(usd * 1e6)))
	}
	return out
}

func (m *Model) warnMissingUsage(u limits.Usage) {
	if u.Tokens() == 0 && m.usageMissingLogged.CompareAndSwap(false, true) {
		m.options.Logger.Warn("endpoint reports no usage: token and cost limits have no effect",
			zap.String("base_url", safeurl.String(m.endpoint.BaseURL)), zap.String("model", m.options.Model))
	}
}
