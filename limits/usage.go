package limits

// Usage is what one run, or one model call, has used. The three input counts
// are disjoint. The zero value is nothing used.
type Usage struct {
	Rounds            int64 `json:"rounds"`
	ToolCalls         int64 `json:"tool_calls"`
	InputTokens       int64 `json:"input_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
	CacheWriteTokens  int64 `json:"cache_write_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	// CostMicroUSD is nil where a price was unknown: never 0 for "unknown".
	CostMicroUSD *int64 `json:"cost_micro_usd,omitempty"`
}

// Tokens is the sum that [Budget].Tokens bounds. Negative counts are taken as
// zero, and the sum stops at the largest number.
func (u Usage) Tokens() int64 {
	return addCounts(addCounts(addCounts(addCounts(0, u.InputTokens), u.CachedInputTokens), u.CacheWriteTokens), u.OutputTokens)
}

// Plus is the sum of two usages. A cost is known only where both are.
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
