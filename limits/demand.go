package limits

import "math"

// Demand is the most that one model request can use. It is reserved before the request,
// and then replaced by the actual use.
type Demand struct {
	// Input is an upper bound of the input tokens. Output is the number of tokens at
	// which the provider cuts the answer.
	Input, Output int64
	// MinOutput is the length of the shortest useful answer. If too little is left,
	// Output is lowered to no less.
	MinOutput int64
	// Price is the price of the tokens. If it is nil, the cost is unknown and not
	// reserved.
	Price *Price
}

// Tokens returns the tokens that the request can use, at most the largest int64.
func (d Demand) Tokens() int64 { return addCounts(d.Input, d.Output) }

// Cost returns the most that the request can cost, in millionths of a US dollar, and
// whether that is known. It prices all input as the dearest kind, in the dearest tier
// that may apply. Only cache writes that are kept for an hour can cost more.
func (d Demand) Cost() (micro int64, known bool) {
	if d.Price == nil {
		return 0, false
	}
	p := *d.Price
	p.Input = max(p.Input, p.CachedInput, p.CacheWrite)
	for _, t := range p.Tiers {
		if d.Input > t.Above {
			p.Input, p.Output = max(p.Input, t.Input, t.CachedInput, t.CacheWrite), max(p.Output, t.Output)
		}
	}
	p.Tiers = nil
	return p.Cost(Usage{InputTokens: d.Input, OutputTokens: d.Output}), true
}

// Fit lowers the output so that d fits what is left of a limit on tokens or cost. It
// reports whether an answer of MinOutput fits. Other limits always fit.
func (d Demand) Fit(k Kind, left int64) (Demand, bool) {
	least := d
	least.Output = min(d.MinOutput, d.Output)
	switch {
	case d.neededOf(k) <= left:
		return d, true
	case least.neededOf(k) > left:
		return least, false
	case k == KindTokens:
		d.Output = left - max(d.Input, 0)
		return d, true
	}
	// The need grows with Output: find the largest one that fits.
	low, high := least.Output, d.Output
	for low < high-1 {
		d.Output = low + (high-low)/2
		if d.neededOf(k) <= left {
			low = d.Output
		} else {
			high = d.Output
		}
	}
	d.Output = low
	return d, true
}

func (d Demand) neededOf(k Kind) int64 {
	switch k {
	case KindTokens:
		return d.Tokens()
	case KindCost:
		cost, _ := d.Cost()
		return cost
	}
	return math.MinInt64
}

// Reserve returns the demand with its output lowered to what the budget has left.
// lowered is the limit that lowered it most, or nil. refused is the limit of which too
// little is left, or nil.
func (m *Meter) Reserve(d Demand) (fit Demand, lowered, refused *ExceededError) {
	for _, k := range []Kind{KindCost, KindTokens} {
		limit, used, ok := m.readLimit(k, 0)
		if !ok {
			continue
		}
		next, ok := d.Fit(k, limit-used)
		if !ok {
			return d, nil, &ExceededError{Kind: k, Limit: limit, Used: used, Needed: next.neededOf(k)}
		}
		if next.Output < d.Output {
			lowered = &ExceededError{Kind: k, Limit: limit, Used: used}
		}
		d = next
	}
	return d, lowered, nil
}
