package loop

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
)

func newSharedBudget(t *testing.T, tokens int64, next Ledger) *SharedBudget {
	t.Helper()
	s, err := NewSharedBudget(limits.Budget{Tokens: &tokens}, next)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tokenDemand(input, output int64) limits.Demand {
	return limits.Demand{Input: input, Output: output, MinOutput: output / 2}
}

func reserveTokens(t *testing.T, s *SharedBudget, d limits.Demand) LedgerEntry {
	t.Helper()
	entry, err := s.Reserve(t.Context(), "a", d)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

func settleTokens(t *testing.T, entry LedgerEntry, input, output int64) {
	t.Helper()
	if err := entry.Settle(&limits.Usage{InputTokens: input, OutputTokens: output}); err != nil {
		t.Fatal(err)
	}
}

// recordingLedger records what was settled. err is the error of its reservations.
type recordingLedger struct {
	err     error
	demands []limits.Demand
	settled []*limits.Usage
}

func (l *recordingLedger) Reserve(_ context.Context, _ string, d limits.Demand) (LedgerEntry, error) {
	if l.err != nil {
		return LedgerEntry{}, l.err
	}
	l.demands = append(l.demands, d)
	return LedgerEntry{Demand: d, Settle: func(u *limits.Usage) error {
		l.settled = append(l.settled, u)
		return nil
	}}, nil
}

func TestSharedBudgetLowersAndRefuses(t *testing.T) {
	s := newSharedBudget(t, 1000, nil)
	settleTokens(t, reserveTokens(t, s, tokenDemand(100, 500)), 100, 300)
	lowered := reserveTokens(t, s, tokenDemand(200, 600))
	if lowered.Demand.Output != 400 || lowered.Lowered == nil || lowered.Lowered.Kind != limits.KindTokens {
		t.Errorf("600 left reserve %+v, lowered by %v", lowered.Demand, lowered.Lowered)
	}
	settleTokens(t, lowered, 200, 100)
	var exceeded *limits.ExceededError
	if _, err := s.Reserve(t.Context(), "a", tokenDemand(200, 600)); !errors.As(err, &exceeded) || exceeded.Used != 700 || exceeded.Needed != 500 {
		t.Errorf("300 left: %v", err)
	}
	if used := s.Used(); used.Tokens() != 700 {
		t.Errorf("used %+v", used)
	}
}

// TestSharedBudgetWaits checks that a request which fits only if another uses less than
// reserved waits for it, and no longer.
func TestSharedBudgetWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		first   limits.Demand
		used    int64 // of the first request, -1 for nothing at all
		output  int64 // of the second reservation, 0 if it is refused
		instant bool
	}{
		"both fit":                    {first: tokenDemand(100, 400), used: 400, output: 400, instant: true},
		"the first one uses little":   {first: tokenDemand(100, 900), used: 100, output: 400},
		"the first one uses nothing":  {first: tokenDemand(100, 900), used: -1, output: 400},
		"enough for a shorter answer": {first: tokenDemand(100, 900), used: 600, output: 200},
		"the first one uses it all":   {first: tokenDemand(100, 900), used: 900},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSharedBudget(t, 1000, nil)
				first := reserveTokens(t, s, tt.first)
				var second LedgerEntry
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					second, err = s.Reserve(t.Context(), "b", tokenDemand(100, 400))
				}()
				synctest.Wait()
				select {
				case <-done:
					if !tt.instant {
						t.Error("the second request does not wait")
					}
				default:
					if tt.instant {
						t.Error("the second request waits")
					}
				}
				if tt.used < 0 {
					if err := first.Settle(nil); err != nil {
						t.Error(err)
					}
				} else {
					settleTokens(t, first, 100, tt.used)
				}
				<-done
				var exceeded *limits.ExceededError
				if refused := errors.As(err, &exceeded); refused != (tt.output == 0) || second.Demand.Output != tt.output {
					t.Errorf("the second request may have %d tokens, want %d: %v", second.Demand.Output, tt.output, err)
				}
			})
		})
	}
}

func TestSharedBudgetEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharedBudget(t, 1000, nil)
		first := reserveTokens(t, s, tokenDemand(100, 900))
		cause := errors.New("the turn was cancelled")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() {
			_, err := s.Reserve(ctx, "b", tokenDemand(100, 400))
			failed <- err
		}()
		synctest.Wait()
		cancel(cause)
		if err := <-failed; !errors.Is(err, cause) {
			t.Error(err)
		}
		settleTokens(t, first, 100, 0)
		if entry := reserveTokens(t, s, tokenDemand(100, 800)); entry.Demand.Output != 800 {
			t.Errorf("the cancelled request keeps a part: %+v is left", entry.Demand)
		}
	})
}

func TestSharedBudgetReservesInTheNextLedger(t *testing.T) {
	next := &recordingLedger{}
	s := newSharedBudget(t, 1000, next)
	entry := reserveTokens(t, s, tokenDemand(100, 1600))
	if entry.Lowered == nil || len(next.demands) != 1 || next.demands[0].Output != 900 {
		t.Errorf("the next ledger reserved %+v, lowered by %v", next.demands, entry.Lowered)
	}
	settleTokens(t, entry, 100, 50)
	want := []*limits.Usage{{InputTokens: 100, OutputTokens: 50}}
	if diff := cmp.Diff(want, next.settled); diff != "" {
		t.Errorf("settled in the next ledger (-want +got):\n%s", diff)
	}
	next.err = errors.New("the ledger is full")
	if _, err := s.Reserve(t.Context(), "a", tokenDemand(100, 700)); !errors.Is(err, next.err) {
		t.Error(err)
	}
	next.err = nil
	if entry := reserveTokens(t, s, tokenDemand(100, 750)); entry.Demand.Output != 750 {
		t.Errorf("a refusal of the next ledger keeps a part: %+v is left", entry.Demand)
	}
}

// TestSharedBudgetHolds uses all that each reservation permits, concurrently: the sum
// stays within the budget.
func TestSharedBudgetHolds(t *testing.T) {
	const limit = 10_000
	s := newSharedBudget(t, limit, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			entry, err := s.Reserve(t.Context(), "a", tokenDemand(100, 400))
			if err != nil {
				return
			}
			_ = entry.Settle(&limits.Usage{InputTokens: entry.Demand.Input, OutputTokens: entry.Demand.Output})
		})
	}
	wg.Wait()
	if used := s.Used().Tokens(); used != limit {
		t.Errorf("used %d of %d tokens", used, limit)
	}
}

func TestSharedBudgetRefusesInvalidBudgets(t *testing.T) {
	if _, err := NewSharedBudget(limits.Budget{Tokens: new(int64(-1))}, nil); err == nil {
		t.Error("a negative budget is accepted")
	}
}
