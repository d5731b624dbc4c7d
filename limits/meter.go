package limits

import (
	"math"
	"time"
)

// Step is something that costs: what a [Meter] is asked about beforehand.
type Step int

// The steps.
const (
	// StepRound is one more model call with tools.
	StepRound Step = iota
	// StepClosing is the closing completion: rounds don't bound it.
	StepClosing
	// StepToolCall is one more tool call.
	StepToolCall
)

// Meter counts [Usage] against a [Budget]. It is a plain value without a clock:
// whoever asks says how much time has passed. It is not safe for concurrent
// use. The zero value has no limits and nothing used.
type Meter struct {
	budget Budget
	used   Usage // without the cost, which is apart
	cost   int64
	// costUnknown says that some usage came without a price.
	costUnknown bool
	warned      map[Kind]bool
}

// NewMeter returns a Meter at zero, or the error of [Budget.Validate].
func NewMeter(b Budget) (Meter, error) {
	if err := b.Validate(); err != nil {
		return Meter{}, err
	}
	return Meter{budget: b, warned: map[Kind]bool{}}, nil
}

// Budget is what the meter counts against.
func (m *Meter) Budget() Budget { return m.budget }

// Add counts usage. Negative counts, which only a broken provider reports, are
// taken as zero, and sums stop at the largest number.
func (m *Meter) Add(u Usage) {
	m.used.Rounds = addCounts(m.used.Rounds, u.Rounds)
	m.used.ToolCalls = addCounts(m.used.ToolCalls, u.ToolCalls)
	m.used.InputTokens = addCounts(m.used.InputTokens, u.InputTokens)
	m.used.CachedInputTokens = addCounts(m.used.CachedInputTokens, u.CachedInputTokens)
	m.used.CacheWriteTokens = addCounts(m.used.CacheWriteTokens, u.CacheWriteTokens)
	m.used.OutputTokens = addCounts(m.used.OutputTokens, u.OutputTokens)
	switch {
	case u.CostMicroUSD != nil:
		m.cost = addCounts(m.cost, *u.CostMicroUSD)
	case u.Rounds > 0 || u.Tokens() > 0:
		m.costUnknown = true
	}
}

// addCounts returns the sum of what is positive of a and b, at most the largest number.
func addCounts(a, b int64) int64 {
	a, b = max(a, 0), max(b, 0)
	return a + min(b, math.MaxInt64-a)
}

// Used is the sum so far. Its cost is nil as soon as one addition had no price.
func (m *Meter) Used() Usage {
	u := m.used
	if !m.costUnknown {
		u.CostMicroUSD = new(m.cost)
	}
	return u
}

// Exceeded says which limit the step would exceed, or nil. What a model call
// will use is not known beforehand, so tokens, cost and time are exceeded when
// nothing of them is left; they are asked before counts, in that order.
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

// LeftToolCalls is how many tool calls may still be made; ok is false where
// there is no such limit.
func (m *Meter) LeftToolCalls() (left int64, ok bool) {
	limit, used, ok := m.readLimit(KindToolCalls, 0)
	return max(limit-used, 0), ok
}

// Warnings returns the limits of which four fifths are used and that were not
// returned before, as errors that nobody has to treat as such.
func (m *Meter) Warnings(elapsed time.Duration) []ExceededError {
	var out []ExceededError
	for _, k := range []Kind{KindRounds, KindToolCalls, KindTokens, KindCost, KindWallTime} {
		limit, used, ok := m.readLimit(k, elapsed)
		// Divided, not multiplied: limit*4 could overflow.
		if !ok || m.warned[k] || used < limit-limit/5 {
			continue
		}
		m.warned[k] = true
		out = append(out, ExceededError{Kind: k, Limit: limit, Used: used})
	}
	return out
}

// readLimit gives limit and use of one kind; ok is false where it is not limited.
func (m *Meter) readLimit(k Kind, elapsed time.Duration) (limit, used int64, ok bool) {
	var bound *int64
	switch k {
	case KindRounds:
		bound, used = m.budget.Rounds, m.used.Rounds
	case KindToolCalls:
		bound, used = m.budget.ToolCalls, m.used.ToolCalls
	case KindTokens:
		bound, used = m.budget.Tokens, m.used.Tokens()
	case KindCost:
		bound, used = m.budget.CostMicroUSD, m.cost
	case KindWallTime:
		if m.budget.WallTime != nil {
			// At least one millisecond: a shorter limit must not read as none.
			bound, used = new(max(m.budget.WallTime.Milliseconds(), 1)), elapsed.Milliseconds()
		}
	}
	if bound == nil {
		return 0, used, false
	}
	return *bound, used, true
}
