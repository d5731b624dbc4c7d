package limits

import "math"

// Price is the price of a model's tokens, in US dollars per million. CachedInput is
// the price of input that the provider read from its cache, and CacheWrite that of
// input that it wrote there.
type Price struct {
	Input       float64 `json:"input"`
	CachedInput float64 `json:"cached_input"`
	CacheWrite  float64 `json:"cache_write"`
	Output      float64 `json:"output"`
	// Tiers are the prices of requests with a long input, in any order. A provider
	// charges the whole request, its output too, by one tier.
	Tiers []PriceTier `json:"tiers,omitempty"`
}

// PriceTier is the price of a request whose input, cached or not, has more than Above
// tokens.
type PriceTier struct {
	Above       int64   `json:"above"`
	Input       float64 `json:"input"`
	CachedInput float64 `json:"cached_input"`
	CacheWrite  float64 `json:"cache_write"`
	Output      float64 `json:"output"`
}

// Cost returns the cost of u, the usage of one request, in millionths of a US dollar,
// rounded up. Negative counts count as zero. The cost saturates at the largest int64.
func (p Price) Cost(u Usage) int64 {
	p = p.forInput(Usage{InputTokens: u.InputTokens, CachedInputTokens: u.CachedInputTokens, CacheWriteTokens: u.CacheWriteTokens}.Tokens())
	// Dollars per million tokens are millionths of a dollar per token.
	micro := float64(max(u.InputTokens, 0))*p.Input + float64(max(u.CachedInputTokens, 0))*p.CachedInput +
		float64(max(u.CacheWriteTokens, 0))*p.CacheWrite + float64(max(u.OutputTokens, 0))*p.Output
	if micro >= math.MaxInt64 {
		return math.MaxInt64
	}
	// The sum of prices such as 0.1 may exceed a whole number by a rounding error.
	return int64(math.Ceil(micro - 1e-6))
}

// forInput returns the price of a request with that many tokens of input.
func (p Price) forInput(tokens int64) Price {
	above := int64(-1)
	for _, t := range p.Tiers {
		if tokens > t.Above && t.Above > above {
			above = t.Above
			p.Input, p.CachedInput, p.CacheWrite, p.Output = t.Input, t.CachedInput, t.CacheWrite, t.Output
		}
	}
	return p
}
