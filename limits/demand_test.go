package limits_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/caisson-run/caisson/limits"
)

// TestFitIsTheLargestAnswer checks over random demands that an answer is lowered to
// exactly what fits, and refused only if the shortest one does not fit.
func TestFitIsTheLargestAnswer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		d := limits.Demand{
			Input: r.Int64N(1000), Output: 1 + r.Int64N(1000), MinOutput: 1 + r.Int64N(100),
			Price: &limits.Price{Input: r.Float64(), CachedInput: r.Float64(), CacheWrite: 2 * r.Float64(), Output: float64(r.IntN(4)) * r.Float64()},
		}
		cost := func(d limits.Demand) int64 {
			micro, _ := d.Cost()
			return micro
		}
		for kind, need := range map[limits.Kind]func(limits.Demand) int64{limits.KindTokens: limits.Demand.Tokens, limits.KindCost: cost} {
			left := r.Int64N(3000) - 100
			least := d
			least.Output = min(d.MinOutput, d.Output)
			fit, ok := d.Fit(kind, left)
			if ok != (need(least) <= left) {
				t.Fatalf("%+v, %d left of %s: fits %v", d, left, kind, ok)
			}
			if !ok {
				continue
			}
			longer := fit
			longer.Output++
			if need(fit) > left || fit.Output < least.Output || fit.Output > d.Output || fit.Output < d.Output && need(longer) <= left {
				t.Fatalf("%+v, %d left of %s: %d tokens of output", d, left, kind, fit.Output)
			}
		}
	}
}

// TestReservedInputHasItsDearestPrice checks that no mix of input costs more than what
// was reserved.
func TestReservedInputHasItsDearestPrice(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		p := limits.Price{Input: r.Float64(), CachedInput: r.Float64(), CacheWrite: r.Float64(), Output: r.Float64()}
		for range r.IntN(3) {
			p.Tiers = append(p.Tiers, limits.PriceTier{Above: r.Int64N(3000), Input: r.Float64(), CachedInput: r.Float64(), CacheWrite: r.Float64(), Output: r.Float64()})
		}
		u := limits.Usage{InputTokens: r.Int64N(1000), CachedInputTokens: r.Int64N(1000), CacheWriteTokens: r.Int64N(1000), OutputTokens: r.Int64N(1000)}
		d := limits.Demand{Input: u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens, Output: u.OutputTokens, Price: &p}
		d.Input += r.Int64N(1000)
		if reserved, _ := d.Cost(); p.Cost(u) > reserved {
			t.Fatalf("%+v cost %d at %+v, and %d was reserved", u, p.Cost(u), p, reserved)
		}
	}
}

// TestDemandsSaturate checks that huge numbers are refused rather than wrapped.
func TestDemandsSaturate(t *testing.T) {
	m, err := limits.NewMeter(limits.Budget{Tokens: new(int64(math.MaxInt64 - 1)), CostMicroUSD: new(int64(math.MaxInt64 - 1))})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []limits.Demand{
		{Input: math.MaxInt64, Output: math.MaxInt64, MinOutput: 1},
		{Input: 10, Output: 10, MinOutput: 10, Price: &limits.Price{Input: math.MaxFloat64}},
	} {
		if _, _, refused := m.Reserve(d); refused == nil {
			t.Errorf("%+v fits", d)
		}
	}
	if _, _, refused := m.Reserve(limits.Demand{Input: -5, Output: 10, MinOutput: 10}); refused != nil {
		t.Errorf("a small demand is refused: %v", refused)
	}
}
