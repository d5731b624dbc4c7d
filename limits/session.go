package limits

import (
	"sync"
	"time"
)

// SessionBreaker bounds a whole session: what all of its turns, and whatever
// else spends on its account, have used together. It refuses an operation
// beforehand where nothing of a limit is left, and from then on for good. It is
// safe for concurrent use.
//
// A [Budget] bounds one run and ends it in order; this is what stands behind it
// where a session has many.
type SessionBreaker struct {
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	meter   Meter
	tripped *TrippedError
}

// NewSessionBreaker makes a breaker at zero whose wall time begins now; a nil
// field of b is no limit, and rounds are not its business. Now is a clock that
// doesn't go back, nil is time.Now. The error is that of [Budget.Validate].
func NewSessionBreaker(b Budget, now func() time.Time) (*SessionBreaker, error) {
	if now == nil {
		now = time.Now
	}
	b.Rounds = nil
	m, err := NewMeter(b)
	if err != nil {
		return nil, err
	}
	return &SessionBreaker{now: now, started: now(), meter: m}, nil
}

// Add counts usage of the session.
func (s *SessionBreaker) Add(u Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meter.Add(u)
}

// Used is the sum so far.
func (s *SessionBreaker) Used() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.meter.Used()
}

// Check refuses the step with a *[TrippedError] where a limit is used up.
// Calls bound tool calls alone; cost, tokens and wall time every step.
func (s *SessionBreaker) Check(step Step) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tripped != nil {
		return s.tripped
	}
	exceeded := s.meter.Exceeded(step, s.now().Sub(s.started))
	if exceeded == nil {
		return nil
	}
	trip := &TrippedError{Breaker: sessionBreakerName(exceeded.Kind), Err: exceeded}
	if exceeded.Kind != KindToolCalls { // a model may still answer without calls
		s.tripped = trip
	}
	return trip
}

// Turn gives the budget of one more turn: b, and no more than what is left of
// the session's. Ask it where [SessionBreaker.Check] lets a tool call through.
func (s *SessionBreaker) Turn(b Budget) Budget {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := s.now().Sub(s.started)
	for _, f := range []struct {
		kind  Kind
		bound **int64
	}{{KindToolCalls, &b.ToolCalls}, {KindTokens, &b.Tokens}, {KindCost, &b.CostMicroUSD}} {
		if limit, used, ok := s.meter.readLimit(f.kind, elapsed); ok {
			*f.bound = minBound(*f.bound, max(limit-used, 1))
		}
	}
	if sessionTime := s.meter.budget.WallTime; sessionTime != nil {
		b.WallTime = minBound(b.WallTime, max(*sessionTime-elapsed, time.Millisecond))
	}
	return b
}

// minBound returns the smaller of a bound, if there is one, and left.
func minBound[T int64 | time.Duration](bound *T, left T) *T {
	if bound != nil {
		left = min(left, *bound)
	}
	return &left
}

// sessionBreakerName names the breaker of a limit.
func sessionBreakerName(k Kind) BreakerName {
	switch k {
	case KindCost:
		return BreakerSessionCost
	case KindTokens:
		return BreakerSessionTokens
	case KindWallTime:
		return BreakerSessionWallTime
	}
	return BreakerSessionCalls
}
