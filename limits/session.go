package limits

import (
	"sync"
	"time"
)

// SessionBreaker bounds the usage of a whole session: all of its turns, and
// everything else that is charged to it. Once nothing is left of a limit, it
// refuses every further operation. It is safe for concurrent use.
//
// A [Budget] bounds one run and ends it in order. A SessionBreaker bounds all
// runs of a session together.
type SessionBreaker struct {
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	meter   Meter
	tripped *TrippedError
}

// NewSessionBreaker returns a breaker that has counted nothing and whose wall
// time starts now. It ignores b.Rounds. The parameter now is a monotonic clock;
// nil means time.Now. The error is that of [Budget.Validate].
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

// Add counts usage.
func (s *SessionBreaker) Add(u Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meter.Add(u)
}

// AddEstimate counts what no provider counted, see [Meter.AddEstimate].
func (s *SessionBreaker) AddEstimate(u Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meter.AddEstimate(u)
}

// AddTime counts wall time that passed before the breaker was made, in an earlier
// process of the session.
func (s *SessionBreaker) AddTime(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = s.started.Add(-max(d, 0))
}

// Used returns the sum of all usage so far.
func (s *SessionBreaker) Used() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.meter.Used()
}

// Check returns a *[TrippedError] if a limit that bounds the step is used up.
// The limit of tool calls bounds tool calls only; cost, tokens and wall time
// bound every step.
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
	if exceeded.Kind != KindToolCalls { // the model may still answer without calls
		s.tripped = trip
	}
	return trip
}

// Turn returns the budget for the next turn: b, capped at what the session has
// left. Call it only if [SessionBreaker.Check] allows a tool call.
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

// minBound returns the smaller of *bound and left. A nil bound is no limit.
func minBound[T int64 | time.Duration](bound *T, left T) *T {
	if bound != nil {
		left = min(left, *bound)
	}
	return &left
}

// sessionBreakerName returns the name of the session's breaker for a limit.
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
