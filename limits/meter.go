package limits

import (
	"math"
	"time"
)

// Step is an operation that uses up a budget; see [Meter.Exceeded].
type Step int

// The steps.
const (
	// StepRound is another model call with tools.
	StepRound Step = iota
	// StepClosing is the closing completion. The limit of rounds doesn't apply to it.
	StepClosing
	StepToolCall
)

// Meter counts [Usage] against a [Budget]. It has no clock: callers pass the elapsed
// time. It is not safe for concurrent use. The zero value has no limits and no usage.
type Meter struct {
	budget Budget
	used   Usage // its cost is in cost
	cost   int64
	// estimate counts the use that providers didn't report. It is not in used.
	estimate    Usage
	costUnknown bool
	warned      map[Kind]bool
}

// NewMeter returns a Meter that has counted nothing, or an error for an invalid budget.
func NewMeter(b Budget) (Meter, error) {
	if err := b.Validate(); err != nil {
		return Meter{}, err
	}
	return Meter{budget: b, warned: map[Kind]bool{}}, nil
}

// Budget returns the meter's budget.
func (m *Meter) Budget() Budget { return m.budget }

// Add counts usage. Negative counts, which only a broken provider reports, count as
// zero. Sums stop at the largest int64.
func (m *Meter) Add(u Usage) {
	m.used = m.used.Plus(u) // without a cost, because it began without one
	switch {
	case u.CostMicroUSD != nil:
		m.cost = addCounts(m.cost, *u.CostMicroUSD)
	case u.Rounds > 0 || u.Tokens() > 0:
		m.costUnknown = true
	}
}

// AddEstimate counts tokens and cost that no provider reported. They count against
// limits, but not in [Meter.Used].
func (m *Meter) AddEstimate(u Usage) { m.estimate = m.estimate.plusKnown(u) }

// Estimate returns the sum of all estimates.
func (m *Meter) Estimate() Usage { return m.estimate }

// addCounts adds counts. Negative ones count as zero, and the sum stops at the largest
// int64.
func addCounts(a, b int64) int64 {
	a, b = max(a, 0), max(b, 0)
	return a + min(b, math.MaxInt64-a)
}

// Used returns all usage so far. Its cost is nil if some usage had no price.
func (m *Meter) Used() Usage {
	u := m.used
	if !m.costUnknown {
		u.CostMicroUSD = new(m.cost)
	}
	return u
}

// Exceeded returns the limit that the step would exceed, or nil. A model call's use
// isn't known beforehand, so time, cost and tokens, checked in this order before
// counts, are exceeded once nothing is left.
func (m *Meter) Exceeded(s Step, elapsed time.Duration) *ExceededError {
	kinds := []Kind{KindWallTime, KindCost, KindTokens}
	switch s {
	case StepRound:
		kinds = append(kinds, KindRounds)
	case StepToolCall:
		kinds = append(kinds, KindToolCalls)
	}
	for _, k := range kinds {
		if limit, used, ok := m.readLimit(k, elapsed); ok && used >= limit {
			return &ExceededError{Kind: k, Limit: limit, Used: used}
		}
	}
	return nil
}

// LeftToolCalls returns the number of tool calls left; ok is false if they are not
// limited.
func (m *Meter) LeftToolCalls() (left int64, ok bool) {
	limit, used, ok := m.readLimit(KindToolCalls, 0)
	return max(limit-used, 0), ok
}

// Left returns what is left of the limits of tokens and cost, at least 1 of each. Call
// it only if [Meter.Exceeded] allows a step.
func (m *Meter) Left() Budget {
	var b Budget
	for _, f := range []struct {
		kind  Kind
		bound **int64
	}{{KindTokens, &b.Tokens}, {KindCost, &b.CostMicroUSD}} {
		if limit, used, ok := m.readLimit(f.kind, 0); ok {
			*f.bound = new(max(limit-used, 1))
		}
	}
	return b
}

// Warnings returns each limit once when four fifths of it are used. Nothing has been
// exceeded yet.
func (m *Meter) Warnings(elapsed time.Duration) []ExceededError {
	var out []ExceededError
	for _, k := range []Kind{KindRounds, KindToolCalls, KindTokens, KindCost, KindWallTime} {
		limit, used, ok := m.readLimit(k, elapsed)
		// limit*4/5 could overflow.
		if !ok || m.warned[k] || used < limit-limit/5 {
			continue
		}
		m.warned[k] = true
		out = append(out, ExceededError{Kind: k, Limit: limit, Used: used})
	}
	return out
}

// readLimit returns a limit and its use; ok is false if there is no limit.
func (m *Meter) readLimit(k Kind, elapsed time.Duration) (limit, used int64, ok bool) {
	var bound *int64
	switch k {
	case KindRounds:
		bound, used = m.budget.Rounds, m.used.Rounds
	case KindToolCalls:
		bound, used = m.budget.ToolCalls, m.used.ToolCalls
	case KindTokens:
		bound, used = m.budget.Tokens, addCounts(m.used.Tokens(), m.estimate.Tokens())
	case KindCost:
		bound, used = m.budget.CostMicroUSD, m.cost
		if m.estimate.CostMicroUSD != nil {
			used = addCounts(used, *m.estimate.CostMicroUSD)
		}
	case KindWallTime:
		if m.budget.WallTime != nil {
			// A limit below one millisecond must not become 0.
			bound, used = new(max(m.budget.WallTime.Milliseconds(), 1)), elapsed.Milliseconds()
		}
	}
	if bound == nil {
		return 0, used, false
	}
	return *bound, used, true
}

// Usage is the usage of a run or a model call. The three counts of input tokens are
// disjoint.
type Usage struct {
	Rounds            int64 `json:"rounds"`
	ToolCalls         int64 `json:"tool_calls"`
	InputTokens       int64 `json:"input_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
	CacheWriteTokens  int64 `json:"cache_write_tokens"`
	// CacheWriteHourTokens are those of CacheWriteTokens that the cache keeps for an
	// hour, which Anthropic charges more for.
	CacheWriteHourTokens int64 `json:"cache_write_hour_tokens,omitempty"`
	OutputTokens         int64 `json:"output_tokens"`
	// CostMicroUSD is in millionths of a US dollar; nil means unknown.
	CostMicroUSD *int64 `json:"cost_micro_usd,omitempty"`
}

// Tokens returns the tokens that [Budget].Tokens bounds. Negative counts count as zero.
func (u Usage) Tokens() int64 {
	return addCounts(addCounts(addCounts(addCounts(0, u.InputTokens), u.CachedInputTokens), u.CacheWriteTokens), u.OutputTokens)
}

// plusKnown is [Usage.Plus] with unknown costs as zero.
func (u Usage) plusKnown(o Usage) Usage {
	for _, v := range []*Usage{&u, &o} {
		if v.CostMicroUSD == nil {
			v.CostMicroUSD = new(int64(0))
		}
	}
	return u.Plus(o)
}

// Plus returns the sum. Its cost is nil unless both costs are known.
func (u Usage) Plus(o Usage) Usage {
	sum := Usage{
		Rounds: addCounts(u.Rounds, o.Rounds), ToolCalls: addCounts(u.ToolCalls, o.ToolCalls),
		InputTokens: addCounts(u.InputTokens, o.InputTokens), CachedInputTokens: addCounts(u.CachedInputTokens, o.CachedInputTokens),
		CacheWriteTokens: addCounts(u.CacheWriteTokens, o.CacheWriteTokens), CacheWriteHourTokens: addCounts(u.CacheWriteHourTokens, o.CacheWriteHourTokens),
		OutputTokens: addCounts(u.OutputTokens, o.OutputTokens),
	}
	if u.CostMicroUSD != nil && o.CostMicroUSD != nil {
		sum.CostMicroUSD = new(addCounts(*u.CostMicroUSD, *o.CostMicroUSD))
	}
	return sum
}

// Price is the price of a model's tokens, in US dollars per million. CachedInput is for
// input that the provider read from its cache, and CacheWrite for input that it stored
// there.
type Price struct {
	Input       float64 `json:"input"`
	CachedInput float64 `json:"cached_input"`
	CacheWrite  float64 `json:"cache_write"`
	Output      float64 `json:"output"`
	// Tiers are prices for long inputs, in any order. One tier applies to the whole
	// request, output included.
	Tiers []PriceTier `json:"tiers,omitempty"`
}

// PriceTier is the price of a request with more than Above input tokens, cached or not.
type PriceTier struct {
	Above       int64   `json:"above"`
	Input       float64 `json:"input"`
	CachedInput float64 `json:"cached_input"`
	CacheWrite  float64 `json:"cache_write"`
	Output      float64 `json:"output"`
}

// hourSurcharge is the surcharge for cache writes that are kept for an hour: they cost
// twice as much as other input, those for 5 minutes 1.25 times.
// Source: platform.claude.com/docs/en/build-with-claude/prompt-caching.
const hourSurcharge = 2/1.25 - 1

// Cost returns the cost of one request in millionths of a US dollar, rounded up.
// Negative counts count as zero. The largest cost is the largest int64.
func (p Price) Cost(u Usage) int64 {
	p = p.forInput(Usage{InputTokens: u.InputTokens, CachedInputTokens: u.CachedInputTokens, CacheWriteTokens: u.CacheWriteTokens}.Tokens())
	// Dollars per million tokens are millionths of a dollar per token.
	written := float64(max(u.CacheWriteTokens, 0)) + hourSurcharge*float64(max(u.CacheWriteHourTokens, 0))
	micro := float64(max(u.InputTokens, 0))*p.Input + float64(max(u.CachedInputTokens, 0))*p.CachedInput + written*p.CacheWrite +
		float64(max(u.OutputTokens, 0))*p.Output
	if micro >= math.MaxInt64 {
		return math.MaxInt64
	}
	// A sum of prices such as 0.1 may exceed a whole number by a rounding error.
	return int64(math.Ceil(micro - 1e-6))
}

func (p Price) forInput(tokens int64) Price {
	above := int64(-1)
	for _, t := range p.Tiers {
		if tokens > t.Above && t.Above > above {
			above = t.Above
			p.Input = t.Input
			p.CachedInput = t.CachedInput
			p.CacheWrite = t.CacheWrite
			p.Output = t.Output
		}
	}
	return p
}
