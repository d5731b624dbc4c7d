package openai

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

type usage struct {
	Prompt     tokenCount    `json:"prompt_tokens"`
	Completion tokenCount    `json:"completion_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
	// Cost is in US dollars (from OpenRouter), or "".
	Cost modelhttp.LooseString `json:"cost"`
}

// promptDetails counts the prompt's tokens read from the cache and written to it.
type promptDetails struct {
	Cached  tokenCount `json:"cached_tokens"`
	Written tokenCount `json:"cache_write_tokens"`
}

// UnmarshalJSON never fails: an unreadable count must not discard the answer.
func (d *promptDetails) UnmarshalJSON(data []byte) error {
	type plain promptDetails
	var p plain
	if json.Unmarshal(data, &p) == nil {
		*d = promptDetails(p)
	}
	return nil
}

// UnmarshalJSON never fails: unreadable usage must not discard the answer.
func (u *usage) UnmarshalJSON(data []byte) error {
	type plain usage
	var p plain
	if json.Unmarshal(data, &p) == nil {
		*u = usage(p)
	}
	return nil
}

// tokenCount is a number of tokens, decoded from an integer, a float or a string.
// Anything else is zero.
type tokenCount int64

// UnmarshalJSON never fails.
func (c *tokenCount) UnmarshalJSON(data []byte) error {
	*c = 0
	f, err := strconv.ParseFloat(strings.Trim(string(data), `"`), 64)
	if err == nil && f > 0 && f < 1e12 { // NaN compares false
		*c = tokenCount(f)
	}
	return nil
}

// limitsUsage converts to disjoint counts.
func (u usage) limitsUsage() limits.Usage {
	cached := min(u.Details.Cached, u.Prompt)
	written := min(u.Details.Written, u.Prompt-cached)
	out := limits.Usage{
		InputTokens: int64(u.Prompt - cached - written), CachedInputTokens: int64(cached), CacheWriteTokens: int64(written),
		OutputTokens: int64(u.Completion),
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
