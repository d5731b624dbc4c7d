package limits

// Usage is the usage of one run or one model call. The three counts of input
// tokens are disjoint.
type Usage struct {
	Rounds            int64 `json:"rounds"`
	ToolCalls         int64 `json:"tool_calls"`
	InputTokens       int64 `json:"input_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
	CacheWriteTokens  int64 `json:"cache_write_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	// CostMicroUSD is the cost in millionths of a US dollar, or nil if it is
	// unknown.
	CostMicroUSD *int64 `json:"cost_micro_usd,omitempty"`
}

// Tokens returns the number of tokens that [Budget].Tokens bounds. Negative
// counts count as zero. The sum saturates at the largest int64.
func (u Usage) Tokens() int64 {
	return addCounts(addCounts(addCounts(addCounts(0, u.InputTokens), u.CachedInputTokens), u.CacheWriteTokens), u.OutputTokens)
}

// plusKnown is [Usage.Plus], but an unknown cost counts as zero.
func (u Usage) plusKnown(o Usage) Usage {
	for _, v := range []*Usage{&u, &o} {
		if v.CostMicroUSD == nil {
			v.CostMicroUSD = new(int64(0))
		}
	}
	return u.Plus(o)
}

// Plus returns the sum of two usages. Its cost is nil unless both costs are
// known.
func (u Usage) Plus(o Usage) Usage {
	sum := Usage{
		Rounds: addCounts(u.Rounds, o.Rounds), ToolCalls: addCounts(u.ToolCalls, o.ToolCalls),
		InputTokens: addCounts(u.InputTokens, o.InputTokens), CachedInputTokens: addCounts(u.CachedInputTokens, o.CachedInputTokens),
		CacheWriteTokens: addCounts(u.CacheWriteTokens, o.CacheWriteTokens), OutputTokens: addCounts(u.OutputTokens, o.OutputTokens),
	}
	if u.CostMicroUSD != nil && o.CostMicroUSD != nil {
		sum.CostMicroUSD = new(addCounts(*u.CostMicroUSD, *o.CostMicroUSD))
	}
	return sum
}
