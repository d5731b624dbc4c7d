package loop

import (
	"context"
	"sync"

	"github.com/caisson-run/caisson/limits"
)

// Spending counts what the tool calls of one round spend on models of their own. It is
// safe for concurrent use.
type Spending struct {
	shared *SharedBudget
	ledger Ledger

	mu   sync.Mutex
	used *limits.Usage
}

type spendingKey struct{}

// SpendingOf returns the spending of the round in which a tool runs with ctx, nil if no
// turn began it.
func SpendingOf(ctx context.Context) *Spending {
	s, _ := ctx.Value(spendingKey{}).(*Spending)
	return s
}

// newSpending returns the spending of a round, bounded by what is left of the turn's
// limits and by its ledger.
func newSpending(t *turn) *Spending {
	left := t.meter.Left()
	s := &Spending{}
	s.shared, _ = NewSharedBudget(left, t.Ledger) // what is left is positive
	if t.Ledger != nil || left.Tokens != nil || left.CostMicroUSD != nil {
		s.ledger = s.shared
	}
	return s
}

// Ledger returns the ledger for the requests, nil if nothing bounds them. Each request
// that is settled is also to be passed to [Spending.Add].
func (s *Spending) Ledger() Ledger {
	if s == nil {
		return nil
	}
	return s.ledger
}

// Add counts the usage of requests. Their number is left out, because the turn's limit
// of rounds is for the turn's own model.
func (s *Spending) Add(u limits.Usage) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u.Rounds, u.ToolCalls = 0, 0
	if s.used != nil {
		u = s.used.Plus(u)
	}
	s.used = &u
}

// chargeTo counts what the calls of the round have spent. What no provider counted is an
// estimate.
func (s *Spending) chargeTo(m *limits.Meter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil {
		return
	}
	m.Add(*s.used)
	settled, used := s.shared.Used(), *s.used
	m.AddEstimate(limits.Usage{
		InputTokens: settled.Tokens() - settled.OutputTokens - (used.Tokens() - used.OutputTokens), OutputTokens: settled.OutputTokens - used.OutputTokens,
		CostMicroUSD: new(knownCost(settled) - knownCost(used)),
	})
}

// knownCost returns the cost of usage, 0 if it is unknown.
func knownCost(u limits.Usage) int64 {
	if u.CostMicroUSD == nil {
		return 0
	}
	return *u.CostMicroUSD
}
