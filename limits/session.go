package limits

import (
	"sync"
	"time"
)

// SessionBreaker bounds all usage of a session: its turns, each of which also has a
// [Budget] of its own, and everything else charged to it. Once a limit is used up, it
// refuses further operations. It is safe for concurrent use.
type SessionBreaker struct {
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	meter   Meter
	tripped *TrippedError
}

// NewSessionBreaker returns a breaker that has counted nothing. Its wall time starts
// now. It ignores b.Rounds, and returns an error if another limit is invalid. now is a
// monotonic clock; nil means time.Now.
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

// AddEstimate counts what no provider counted; see [Meter.AddEstimate].
func (s *SessionBreaker) AddEstimate(u Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meter.AddEstimate(u)
}

// AddTime counts wall time that passed in an earlier process of the session.
func (s *SessionBreaker) AddTime(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = s.started.Add(-max(d, 0))
}

// Used returns all usage so far.
func (s *SessionBreaker) Used() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.meter.Used()
}

// Check returns a *[TrippedError] if a limit that applies to the step is used up. The
// limit of tool calls applies only to tool calls; cost, tokens and wall time apply to
// every step.
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

// Turn returns the next turn's budget: b, capped at what the session has left. Call it
// only if [SessionBreaker.Check] allows a tool call.
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

// minBound returns the smaller of *bound and left; a nil bound is no limit.
func minBound[T int64 | time.Duration](bound *T, left T) *T {
	if bound != nil {
		left = min(left, *bound)
	}
	return &left
}

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
