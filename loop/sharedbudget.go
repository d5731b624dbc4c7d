package loop

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/limits"
)

// SharedBudget is a [Ledger] with one budget's limits of tokens and cost, for
// concurrent requests of several turns. It is safe for concurrent use.
type SharedBudget struct {
	next Ledger

	mu    sync.Mutex
	meter limits.Meter
	// pending has the unsettled reservations.
	pending map[*limits.Usage]bool
	// settled is closed and replaced whenever a reservation is settled.
	settled chan struct{}
}

var _ Ledger = (*SharedBudget)(nil)

// NewSharedBudget returns a ledger that has counted nothing. It also reserves in next,
// unless that is nil. It returns an error for an invalid budget.
func NewSharedBudget(b limits.Budget, next Ledger) (*SharedBudget, error) {
	m, err := limits.NewMeter(limits.Budget{Tokens: b.Tokens, CostMicroUSD: b.CostMicroUSD})
	if err != nil {
		return nil, err
	}
	return &SharedBudget{next: next, meter: m, pending: map[*limits.Usage]bool{}, settled: make(chan struct{})}, nil
}

// Used returns the sum of all settled use.
func (s *SharedBudget) Used() limits.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.meter.Used()
}

// Reserve implements [Ledger]. If a request fits only if others use less than they
// reserved, it waits for them.
func (s *SharedBudget) Reserve(ctx context.Context, profile string, d limits.Demand) (LedgerEntry, error) {
	for {
		entry, wait, err := s.tryReserve(d)
		if wait == nil {
			if err != nil {
				return LedgerEntry{}, err
			}
			return s.reserveNext(ctx, profile, entry)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return LedgerEntry{}, fmt.Errorf("wait for a reservation: %w", context.Cause(ctx))
		}
	}
}

// tryReserve reserves what fits, or returns a channel to wait on.
func (s *SharedBudget) tryReserve(d limits.Demand) (LedgerEntry, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.meter
	for u := range s.pending {
		m.AddEstimate(*u)
	}
	fit, lowered, refused := m.Reserve(d)
	if len(s.pending) > 0 && (refused != nil || lowered != nil) {
		return LedgerEntry{}, s.settled, nil
	}
	if refused != nil {
		return LedgerEntry{}, nil, refused
	}
	reserved := &limits.Usage{InputTokens: fit.Input, OutputTokens: fit.Output}
	if cost, known := fit.Cost(); known {
		reserved.CostMicroUSD = &cost
	}
	s.pending[reserved] = true
	return LedgerEntry{Demand: fit, Lowered: lowered, Settle: func(used *limits.Usage) error {
		s.settleRequest(reserved, used)
		return nil
	}}, nil, nil
}

func (s *SharedBudget) settleRequest(reserved, used *limits.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, reserved)
	if used != nil {
		s.meter.Add(*used)
	}
	close(s.settled)
	s.settled = make(chan struct{})
}

// reserveNext also reserves in the next ledger.
func (s *SharedBudget) reserveNext(ctx context.Context, profile string, own LedgerEntry) (LedgerEntry, error) {
	if s.next == nil {
		return own, nil
	}
	entry, err := s.next.Reserve(ctx, profile, own.Demand)
	if err != nil {
		_ = own.Settle(nil) // never fails
		return LedgerEntry{}, err
	}
	entry.Lowered = cmp.Or(entry.Lowered, own.Lowered)
	settleNext := entry.Settle
	entry.Settle = func(used *limits.Usage) error {
		_ = own.Settle(used) // never fails
		return settleNext(used)
	}
	return entry, nil
}

// Spending counts what one round's tool calls spend on models. It is safe for
// concurrent use.
type Spending struct {
	shared *SharedBudget
	ledger Ledger

	mu   sync.Mutex
	used *limits.Usage
}

type spendingKey struct{}

// SpendingOf returns the spending of the round in which a tool runs with ctx, or nil
// outside a turn.
func SpendingOf(ctx context.Context) *Spending {
	s, _ := ctx.Value(spendingKey{}).(*Spending)
	return s
}

// newSpending returns a round's spending, bounded by what is left of the turn's limits
// and by its ledger.
func newSpending(t *turn) *Spending {
	left := t.meter.Left()
	s := &Spending{}
	s.shared, _ = NewSharedBudget(left, t.Ledger) // what is left is positive
	if t.Ledger != nil || left.Tokens != nil || left.CostMicroUSD != nil {
		s.ledger = s.shared
	}
	return s
}

// Ledger returns the ledger for the requests, or nil if nothing bounds them. Pass each
// settled request to [Spending.Add] too.
func (s *Spending) Ledger() Ledger {
	if s == nil {
		return nil
	}
	return s.ledger
}

// Add counts requests' usage, except their number: the turn's limit of rounds is for
// its own model.
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

// chargeTo counts what the round's calls spent. Use that no provider counted is an
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

func knownCost(u limits.Usage) int64 {
	if u.CostMicroUSD == nil {
		return 0
	}
	return *u.CostMicroUSD
}
