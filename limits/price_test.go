package limits

import (
	"math"
	"testing"
)

func TestPriceCost(t *testing.T) {
	price := Price{Input: 3, CachedInput: 0.3, CacheWrite: 3.75, Output: 15}
	for name, tt := range map[string]struct {
		price Price
		usage Usage
		want  int64
	}{
		"nothing":             {price: price},
		"input":               {price: price, usage: Usage{InputTokens: 1000}, want: 3000},
		"read from cache":     {price: price, usage: Usage{CachedInputTokens: 1000}, want: 300},
		"written to cache":    {price: price, usage: Usage{CacheWriteTokens: 1000}, want: 3750},
		"output":              {price: price, usage: Usage{OutputTokens: 1000}, want: 15000},
		"all":                 {price: price, usage: Usage{InputTokens: 1, CachedInputTokens: 10, CacheWriteTokens: 4, OutputTokens: 2}, want: 51},
		"rounded up":          {price: price, usage: Usage{CachedInputTokens: 1}, want: 1},
		"no rounding error":   {price: Price{Input: 0.1}, usage: Usage{InputTokens: 30}, want: 3},
		"free":                {usage: Usage{InputTokens: 1000, OutputTokens: 1000}},
		"rounds cost nothing": {price: price, usage: Usage{Rounds: 3, ToolCalls: 4}},
		"negative":            {price: price, usage: Usage{InputTokens: -1000, OutputTokens: 1}, want: 15},
		"beyond int64":        {price: price, usage: Usage{OutputTokens: math.MaxInt64}, want: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.price.Cost(tt.usage); got != tt.want {
				t.Errorf("Cost = %d, want %d", got, tt.want)
			}
		})
	}
}
