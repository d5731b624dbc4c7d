package limits_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
)

func TestSessionBreaker(t *testing.T) {
	budget := limits.Budget{
		Rounds: new(int64(1)), ToolCalls: new(int64(2)), Tokens: new(int64(100)), CostMicroUSD: new(int64(50)), WallTime: new(time.Minute),
	}
	for name, tt := range map[string]struct {
		used    limits.Usage
		passed  time.Duration
		breaker limits.BreakerName // the breaker that refuses the next tool call, or ""
		answers bool               // whether a model call is still allowed
	}{
		"nothing":            {answers: true},
		"rounds don't count": {used: limits.Usage{Rounds: 5, CostMicroUSD: new(int64(0))}, answers: true},
		"calls":              {used: limits.Usage{ToolCalls: 2}, breaker: limits.BreakerSessionCalls, answers: true},
		"tokens":             {used: limits.Usage{InputTokens: 60, OutputTokens: 40}, breaker: limits.BreakerSessionTokens},
		"cost":               {used: limits.Usage{CostMicroUSD: new(int64(50))}, breaker: limits.BreakerSessionCost},
		"time":               {passed: time.Minute, breaker: limits.BreakerSessionWallTime},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			s, err := limits.NewSessionBreaker(budget, c.now)
			if err != nil {
				t.Fatal(err)
			}
			s.Add(tt.used)
			for range 2 { // the first call releases the lock
				if got := s.Used(); got.ToolCalls != tt.used.ToolCalls || got.Tokens() != tt.used.Tokens() {
					t.Errorf("used %+v, want %+v", got, tt.used)
				}
			}
			c.advance(tt.passed)
			for range 2 { // it stays tripped
				got := limits.BreakerName("")
				err := s.Check(limits.StepToolCall)
				if trip, ok := errors.AsType[*limits.TrippedError](err); ok {
					got = trip.Breaker
					if _, ok := errors.AsType[*limits.ExceededError](err); !ok {
						t.Errorf("%v doesn't wrap an ExceededError", err)
					}
				}
				if got != tt.breaker {
					t.Errorf("breaker %q (%v), want %q", got, err, tt.breaker)
				}
				for _, step := range []limits.Step{limits.StepClosing, limits.StepRound} {
					if err := s.Check(step); (err == nil) != tt.answers {
						t.Errorf("model call: %v", err)
					}
				}
			}
		})
	}
	if _, err := limits.NewSessionBreaker(limits.Budget{Tokens: new(int64(0))}, nil); err == nil {
		t.Error("a limit of zero was accepted")
	}
}

// The error keeps naming the first limit that was reached.
func TestSessionBreakerStaysTripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := limits.NewSessionBreaker(limits.Budget{Tokens: new(int64(10)), WallTime: new(time.Minute)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Add(limits.Usage{InputTokens: 10})
		for range 2 {
			err := s.Check(limits.StepRound)
			if want := "CIRCUIT_BREAKER_TRIPPED: breaker session_tokens: " + (&limits.ExceededError{Kind: limits.KindTokens, Limit: 10, Used: 10}).Error(); err == nil || err.Error() != want {
				t.Errorf("Check() = %v, want %s", err, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestTurnWallTime(t *testing.T) {
	c := newClock()
	s, err := limits.NewSessionBreaker(limits.Budget{WallTime: new(time.Minute)}, c.now)
	if err != nil {
		t.Fatal(err)
	}
	c.advance(20 * time.Second)
	for own, want := range map[time.Duration]time.Duration{
		0: 40 * time.Second, 30 * time.Second: 30 * time.Second, 50 * time.Second: 40 * time.Second,
	} {
		var b limits.Budget
		if own > 0 {
			b.WallTime = &own
		}
		if got := s.Turn(b).WallTime; got == nil || *got != want {
			t.Errorf("a turn with %v of its own has %v, want %v", own, got, want)
		}
	}
	c.advance(time.Hour)
	if got := s.Turn(limits.Budget{}).WallTime; got == nil || *got != time.Millisecond {
		t.Errorf("a turn when no time is left has %v", got)
	}
}

// TestTurnsNeverExceedSession checks that turns never use more than the session's
// budget together, nor more than their own.
func TestTurnsNeverExceedSession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		draw := func(name string) *int64 {
			if !rapid.Bool().Draw(t, name+" is limited") {
				return nil
			}
			return new(rapid.Int64Range(1, 100).Draw(t, name))
		}
		all := limits.Budget{Tokens: draw("tokens"), ToolCalls: draw("calls"), CostMicroUSD: draw("cost"), WallTime: (*time.Duration)(draw("time"))}
		if all.WallTime != nil {
			*all.WallTime *= time.Second
		}
		own := limits.Budget{Rounds: new(int64(3)), Tokens: draw("a turn's tokens")}
		s, err := limits.NewSessionBreaker(all, c.now)
		if err != nil {
			t.Fatal(err)
		}
		var used limits.Usage
		begun := c.now()
		for turn := 0; turn < 20 && s.Check(limits.StepToolCall) == nil; turn++ {
			got := s.Turn(own)
			if err := got.Validate(); err != nil {
				t.Fatal(err)
			}
			if *got.Rounds != 3 || own.Tokens != nil && *got.Tokens > *own.Tokens {
				t.Fatalf("a turn's own budget grew: %+v", got)
			}
			use := func(limit *int64, what string) int64 {
				most := int64(100)
				if limit != nil {
					most = *limit
				}
				return rapid.Int64Range(0, most).Draw(t, what)
			}
			u := limits.Usage{
				InputTokens:  use(got.Tokens, "tokens used"),
				ToolCalls:    use(got.ToolCalls, "calls made"),
				CostMicroUSD: new(use(got.CostMicroUSD, "cost")),
			}
			c.advance(time.Duration(use((*int64)(got.WallTime), "time passed")).Truncate(time.Millisecond))
			s.Add(u)
			if turn == 0 {
				used = u
			} else {
				used = used.Plus(u)
			}
		}
		over := func(limit *int64, n int64) bool { return limit != nil && n > *limit }
		if over(all.Tokens, used.InputTokens) || over(all.ToolCalls, used.ToolCalls) || used.CostMicroUSD != nil && over(all.CostMicroUSD, *used.CostMicroUSD) ||
			over((*int64)(all.WallTime), int64(c.now().Sub(begun))) {
			t.Fatalf("used %+v and %v of %+v", used, c.now().Sub(begun), all)
		}
	})
}
