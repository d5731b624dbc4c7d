package openai

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// usage is what the endpoint counted.
type usage struct {
	Prompt     tokenCount    `json:"prompt_tokens"`
	Completion tokenCount    `json:"completion_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
	// Cost in US dollars is OpenRouter's; "" where it is not said.
	Cost looseString `json:"cost"`
}

// promptDetails is the part of the prompt that was cached.
type promptDetails struct {
	Cached tokenCount `json:"cached_tokens"`
}

// UnmarshalJSON never fails: a count that can't be read must not cost the answer.
func (d *promptDetails) UnmarshalJSON(data []byte) error {
	type plain promptDetails
	var p plain
	if json.Unmarshal(data, &p) == nil {
		*d = promptDetails(p)
	}
	return nil
}

// UnmarshalJSON never fails, for the same reason.
func (u *usage) UnmarshalJSON(data []byte) error {
	type plain usage
	var p plain
	if json.Unmarshal(data, &p) == nil {
		*u = usage(p)
	}
	return nil
}

// tokenCount is a number of tokens that may come as a float or a string; what makes
// no sense is zero.
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

// limitsUsage is the usage in the loop's disjoint counts, with the endpoint's own
// cost where it says one.
func (u usage) limitsUsage() limits.Usage {
	cached := min(u.Details.Cached, u.Prompt)
	out := limits.Usage{
		InputTokens: int64(u.Prompt - cached), CachedInputTokens: int64(cached), OutputTokens: int64(u.Completion),
	}
	if usd, err := strconv.ParseFloat(string(u.Cost), 64); err == nil && usd >= 0 && usd < 1e9 {
		out.CostMicroUSD = new(int64(math.Round(usd * 1e6)))
	}
	return out
}

// setCost sets the cost from the profile's price, which beats the endpoint's own
// word. Without usage there is nothing to price, and the cost stays unknown.
func (m *Model) setCost(r *loop.Response) {
	if r.Usage.Tokens() == 0 {
		if m.usageMissingLogged.CompareAndSwap(false, true) {
			m.options.Logger.Warn("endpoint reports no usage: token and cost limits can't hold",
				zap.String("base_url", safeurl.String(m.options.BaseURL)), zap.String("model", m.options.Model))
		}
		return
	}
	p := m.options.Price
	if p == nil {
		return
	}
	// Dollars for a million tokens are millionths of a dollar for one.
	micro := float64(r.Usage.InputTokens)*p.Input + float64(r.Usage.CachedInputTokens)*p.CachedInput +
		float64(r.Usage.OutputTokens)*p.Output
	r.Usage.CostMicroUSD = new(int64(math.Ceil(micro)))
}
