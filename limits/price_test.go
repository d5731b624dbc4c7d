package limits

import (
	"math"
	"testing"
)

func TestPriceCost(t *testing.T) {
	price := Price{Input: 3, CachedInput: 0.3, CacheWrite: 3.75, Output: 15}
	tiered := Price{Input: 1, CachedInput: 0.1, CacheWrite: 2, Output: 10, Tiers: []PriceTier{
		{Above: 300, Input: 4, CachedInput: 0.4, CacheWrite: 8, Output: 40},
		{Above: 200, Input: 2, CachedInput: 0.2, CacheWrite: 4, Output: 15},
	}}
	for name, tt := range map[string]struct {
		price Price
		usage Usage
		want  int64
	}{
		"nothing":             {price: price},
		"input":               {price: price, usage: Usage{InputTokens: 1000}, want: 3000},
		"read from cache":     {price: price, usage: Usage{CachedInputTokens: 1000}, want: 300},
		"written to cache":    {price: price, usage: Usage{CacheWriteTokens: 1000}, want: 3750},
		"written for an hour": {price: price, usage: Usage{CacheWriteTokens: 1000, CacheWriteHourTokens: 400}, want: 4650},
		"output":              {price: price, usage: Usage{OutputTokens: 1000}, want: 15000},
		"all":                 {price: price, usage: Usage{InputTokens: 1, CachedInputTokens: 10, CacheWriteTokens: 4, OutputTokens: 2}, want: 51},
		"rounded up":          {price: price, usage: Usage{CachedInputTokens: 1}, want: 1},
		"no rounding error":   {price: Price{Input: 0.1}, usage: Usage{InputTokens: 30}, want: 3},
		"free":                {usage: Usage{InputTokens: 1000, OutputTokens: 1000}},
		"rounds cost nothing": {price: price, usage: Usage{Rounds: 3, ToolCalls: 4}},
		"negative":            {price: price, usage: Usage{InputTokens: -1000, OutputTokens: 1}, want: 15},
		"short":               {price: tiered, usage: Usage{InputTokens: 200, OutputTokens: 1000}, want: 10200},
		"long":                {price: tiered, usage: Usage{InputTokens: 201, OutputTokens: 1000}, want: 15402},
		"longest":             {price: tiered, usage: Usage{InputTokens: 301, OutputTokens: 1}, want: 1244},
		"long by its cache":   {price: tiered, usage: Usage{InputTokens: 1, CachedInputTokens: 100, CacheWriteTokens: 100}, want: 422},
		"output is no input":  {price: tiered, usage: Usage{InputTokens: 1, OutputTokens: 1000}, want: 10001},
		"beyond int64":        {price: price, usage: Usage{OutputTokens: math.MaxInt64}, want: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.price.Cost(tt.usage); got != tt.want {
				t.Errorf("Cost = %d, want %d", got, tt.want)
			}
		})
	}
}
