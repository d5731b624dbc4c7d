package worker

import (
	"fmt"
	"math"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// CostMode says what happens if a worker costs more than its cap.
type CostMode string

// The modes. Any other value means CostWarn.
const (
	// CostWarn reports it once.
	CostWarn CostMode = "warn"
	// CostEnforce refuses the next tool call and leaves one round to answer.
	CostEnforce CostMode = "enforce"
	CostOff     CostMode = "off"
)

// CostCap bounds the cost of each worker with tools. The zero value doesn't.
type CostCap struct {
	// USD is in US dollars. Values that are not positive and finite mean no cap.
	USD  float64
	Mode CostMode
}

// normalize returns the cap with a valid mode, and with USD zero if there is no cap.
func (c CostCap) normalize() CostCap {
	if c.Mode != CostEnforce && c.Mode != CostOff {
		c.Mode = CostWarn
	}
	if !(c.USD > 0) || math.IsInf(c.USD, 0) || c.Mode == CostOff {
		c.USD = 0
	}
	return c
}

// tightenTo combines two caps: the lower amount, and enforcement if o enforces. If c is
// no cap, it returns o.
func (c CostCap) tightenTo(o CostCap) CostCap {
	own, other := c.normalize(), o.normalize()
	if !own.enabled() {
		return other
	}
	if other.enabled() {
		own.USD = min(own.USD, other.USD)
	}
	if other.Mode == CostEnforce {
		own.Mode = CostEnforce
	}
	return own
}

func (c CostCap) enabled() bool { return c.USD > 0 }

// checkPrice returns an error if the cap is enforced but the profile's price is
// unknown, so that the cap would have no effect.
func (o ToolOptions) checkPrice(p loop.Profile) error {
	c := o.CostCap.normalize()
	if !c.enabled() || c.Mode != CostEnforce || len(o.Names) == 0 {
		return nil
	}
	return p.CheckPrice(limits.Budget{CostMicroUSD: new(int64(1))})
}

// CostCapState is one worker's cap and cost.
type CostCapState struct {
	CapUSD float64  `json:"cap_usd"`
	Mode   CostMode `json:"mode"`
	// ObservedUSD is nil if the cost is unknown.
	ObservedUSD *float64 `json:"observed_usd"`
	Exceeded    bool     `json:"exceeded"`
	// Blocked means that the cap caused a call's refusal.
	Blocked bool `json:"blocked"`
}

func (c CostCap) observe(used limits.Usage) CostCapState {
	s := CostCapState{CapUSD: c.USD, Mode: c.Mode}
	if used.CostMicroUSD != nil {
		s.ObservedUSD = new(float64(*used.CostMicroUSD) / 1e6)
		s.Exceeded = c.enabled() && *s.ObservedUSD > c.USD
	}
	return s
}

// CostCapReport has the state of the cap for all workers with tools.
type CostCapReport struct {
	CapUSD      float64         `json:"cap_usd"`
	Mode        CostMode        `json:"mode"`
	ExceededAny bool            `json:"exceeded_any"`
	BlockedAny  bool            `json:"blocked_any"`
	PerProvider []CostCapWorker `json:"per_provider,omitempty"`
	PerRole     []CostCapWorker `json:"per_role,omitempty"`
	// OperatorPrompt asks what to do about a cap that was exceeded but not enforced.
	OperatorPrompt string `json:"operator_prompt,omitempty"`
}

// CostCapWorker has one worker's [CostCapState].
type CostCapWorker struct {
	Role     Role   `json:"role,omitempty"`
	Provider string `json:"provider"`
	Profile  string `json:"profile"`
	CostCapState
}

// newCostCapReport returns nil if there is no cap.
func newCostCapReport(c CostCap, answers []Answer) *CostCapReport {
	if !c.enabled() {
		return nil
	}
	r := &CostCapReport{CapUSD: c.USD, Mode: c.Mode}
	for _, a := range answers {
		if a.CostCap == nil {
			continue
		}
		r.ExceededAny = r.ExceededAny || a.CostCap.Exceeded
		r.BlockedAny = r.BlockedAny || a.CostCap.Blocked
		w := CostCapWorker{Role: a.Role, Provider: a.Provider, Profile: a.Profile, CostCapState: *a.CostCap}
		if a.Role == "" {
			r.PerProvider = append(r.PerProvider, w)
		} else {
			r.PerRole = append(r.PerRole, w)
		}
	}
	if r.ExceededAny && !r.BlockedAny {
		r.OperatorPrompt = fmt.Sprintf("A worker with tools cost more than the cap of %.4f USD. Ask the user how to go on: enforce the cap, only warn as now, or switch it off.", c.USD)
	}
	return r
}
