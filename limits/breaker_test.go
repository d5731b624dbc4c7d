package limits_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
)

type clock struct{ current time.Time }

func (c *clock) now() time.Time { return c.current }

func (c *clock) advance(d time.Duration) { c.current = c.current.Add(d) }

func newClock() *clock { return &clock{current: time.Unix(1_700_000_000, 0)} }

func newTestBreakers(t testing.TB, c *clock) *limits.Breakers {
	t.Helper()
	b, err := limits.NewBreakers(limits.BreakerOptions{
		Name: limits.BreakerFetchHost, Failures: 3, Cooldown: 10 * time.Second, MaxCooldown: 40 * time.Second, Keys: 4, Now: c.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func tryOperation(b *limits.Breakers, key string, o limits.Outcome) error {
	done, err := b.Begin(key)
	if err == nil {
		done(o)
	}
	return err
}

func TestBreakerOpensAndCloses(t *testing.T) {
	c := newClock()
	b := newTestBreakers(t, c)
	for i := range 3 {
		if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
	err := tryOperation(b, "a", limits.OutcomeSuccess)
	trip, ok := errors.AsType[*limits.TrippedError](err)
	if !ok || trip.Breaker != limits.BreakerFetchHost || trip.Key != "a" || trip.Retry != 10*time.Second || trip.Code() != "CIRCUIT_BREAKER_TRIPPED" {
		t.Fatalf("open: %#v", err)
	}
	if want := "CIRCUIT_BREAKER_TRIPPED: breaker fetch_host of a is open for another 10s"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if err := tryOperation(b, "other", limits.OutcomeSuccess); err != nil {
		t.Errorf("another key: %v", err)
	}
	c.advance(10 * time.Second)
	done, err := b.Begin("a")
	if err != nil || b.State("a") != limits.BreakerHalfOpen {
		t.Fatalf("after the cooldown: %v, %s", err, b.State("a"))
	}
	if err := tryOperation(b, "a", limits.OutcomeSuccess); err == nil || !strings.Contains(err.Error(), "trial") {
		t.Errorf("a second trial: %v", err)
	}
	done(limits.OutcomeFailure)
	done(limits.OutcomeSuccess) // has no effect
	c.advance(19 * time.Second)
	if b.State("a") != limits.BreakerOpen {
		t.Errorf("a failed trial didn't double the cooldown: %s", b.State("a"))
	}
	c.advance(time.Second)
	if err := tryOperation(b, "a", limits.OutcomeUnknown); err != nil {
		t.Errorf("trial: %v", err)
	}
	if err := tryOperation(b, "a", limits.OutcomeSuccess); err != nil {
		t.Errorf("the trial after one with an unknown outcome: %v", err)
	}
	if b.State("a") != limits.BreakerClosed {
		t.Errorf("state %s after a success", b.State("a"))
	}
}

func TestBreakerIgnoresStaleOutcomes(t *testing.T) {
	c := newClock()
	b := newTestBreakers(t, c)
	old, err := b.Begin("a")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_ = tryOperation(b, "a", limits.OutcomeFailure)
	}
	old(limits.OutcomeSuccess)
	if b.State("a") != limits.BreakerOpen {
		t.Error("an operation from an earlier epoch closed the breaker")
	}
}

func TestBreakerRemembersOpenKeys(t *testing.T) {
	c := newClock()
	b := newTestBreakers(t, c)
	for key := range 4 {
		for range 3 {
			_ = tryOperation(b, fmt.Sprint(key), limits.OutcomeFailure)
		}
	}
	if err := tryOperation(b, "new", limits.OutcomeSuccess); err == nil {
		t.Error("a new key was allowed while all keys that fit are open")
	}
	c.advance(10 * time.Second)
	if err := tryOperation(b, "new", limits.OutcomeSuccess); err != nil {
		t.Errorf("a new key while none is open: %v", err)
	}
}

func TestBreakerOptions(t *testing.T) {
	for name, o := range map[string]limits.BreakerOptions{
		"no name":           {},
		"negative failures": {Name: "x", Failures: -1},
		"negative cooldown": {Name: "x", Cooldown: -1},
		"max below":         {Name: "x", Cooldown: time.Minute, MaxCooldown: time.Second},
	} {
		if _, err := limits.NewBreakers(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, o := range map[string]limits.BreakerOptions{
		"only a long cooldown": {Name: "x", Cooldown: time.Hour},
		"equal to the maximum": {Name: "x", Cooldown: time.Hour, MaxCooldown: time.Hour},
	} {
		if _, err := limits.NewBreakers(o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func requireTripped(t *testing.T, b *limits.Breakers, key string, retry time.Duration) *limits.TrippedError {
	t.Helper()
	_, err := b.Begin(key)
	trip, ok := errors.AsType[*limits.TrippedError](err)
	if !ok || trip.Retry != retry {
		t.Fatalf("Begin(%s) = %v, want it refused for %v", key, err, retry)
	}
	return trip
}

func TestBreakerDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := limits.NewBreakers(limits.BreakerOptions{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		for range limits.DefaultBreakerFailures {
			if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
				t.Fatal(err)
			}
		}
		for _, cooldown := range []time.Duration{30, 60, 120, 240, 300, 300} {
			requireTripped(t, b, "a", cooldown*time.Second)
			time.Sleep(cooldown * time.Second)
			if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestBreakerSmallestOptions(t *testing.T) {
	c := newClock()
	b, err := limits.NewBreakers(limits.BreakerOptions{Name: "x", Failures: 1, Cooldown: 1, Keys: 1, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	_ = tryOperation(b, "a", limits.OutcomeFailure)
	trip := requireTripped(t, b, "a", 1)
	if want := "CIRCUIT_BREAKER_TRIPPED: breaker x of a is open for another 1s"; trip.Error() != want {
		t.Errorf("error %q, want %q", trip, want)
	}
	requireTripped(t, b, "b", 1)
	c.advance(1)
	_ = tryOperation(b, "a", limits.OutcomeFailure)
	requireTripped(t, b, "a", 2)
}

func TestBreakerResetsFailuresOnceClosed(t *testing.T) {
	c := newClock()
	b := newTestBreakers(t, c)
	for range 3 {
		_ = tryOperation(b, "a", limits.OutcomeFailure)
	}
	c.advance(10 * time.Second)
	_ = tryOperation(b, "a", limits.OutcomeSuccess)
	for range 2 {
		_ = tryOperation(b, "a", limits.OutcomeFailure)
		if b.State("a") != limits.BreakerClosed {
			t.Fatal("open after fewer failures than the first time")
		}
	}
	_ = tryOperation(b, "a", limits.OutcomeFailure)
	requireTripped(t, b, "a", 10*time.Second)
}

// Keys without failures must not displace keys with failures.
func TestBreakerRemembersFailures(t *testing.T) {
	b, err := limits.NewBreakers(limits.BreakerOptions{Name: "x", Failures: 2, Keys: 2})
	if err != nil {
		t.Fatal(err)
	}
	_ = tryOperation(b, "a", limits.OutcomeFailure)
	for _, key := range []string{"b", "c", "d"} {
		_ = tryOperation(b, key, limits.OutcomeSuccess)
	}
	_ = tryOperation(b, "a", limits.OutcomeFailure)
	if b.State("a") != limits.BreakerOpen {
		t.Error("keys without failures displaced a failure")
	}
}

// referenceBreaker is the simplest implementation of the documented state
// machine of one key.
type referenceBreaker struct {
	state    limits.BreakerState
	failures int // consecutive failures while closed
	cooldown time.Duration
	openedAt time.Time
	trial    int // the operation that is the trial, or 0
	epoch    int // the epoch of operations whose outcome counts
}

func (r *referenceBreaker) stateAt(now time.Time) limits.BreakerState {
	if r.state == limits.BreakerOpen && now.Sub(r.openedAt) >= r.cooldown {
		r.state = limits.BreakerHalfOpen
	}
	return r.state
}

func (r *referenceBreaker) open(now time.Time, cooldown time.Duration) {
	*r = referenceBreaker{state: limits.BreakerOpen, cooldown: cooldown, openedAt: now, epoch: r.epoch + 1}
}

// TestBreakerMatchesStateMachine compares random sequences of operations and
// passing time with the reference.
func TestBreakerMatchesStateMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		b, err := limits.NewBreakers(limits.BreakerOptions{
			Name: "p", Failures: 2, Cooldown: 10 * time.Second, MaxCooldown: 40 * time.Second, Now: c.now,
		})
		if err != nil {
			t.Fatal(err)
		}
		ref := referenceBreaker{state: limits.BreakerClosed}
		type operation struct {
			id, epoch int
			done      func(limits.Outcome)
		}
		var running []operation
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				next++
				state := ref.stateAt(c.current)
				want := state == limits.BreakerClosed || state == limits.BreakerHalfOpen && ref.trial == 0
				done, err := b.Begin("k")
				if (err == nil) != want {
					t.Fatalf("%s with trial %d: Begin() = %v", state, ref.trial, err)
				}
				if err != nil {
					return
				}
				if state == limits.BreakerHalfOpen {
					ref.trial = next
				}
				running = append(running, operation{next, ref.epoch, done})
			},
			"end": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				op := running[i]
				running = append(running[:i], running[i+1:]...)
				o := rapid.SampledFrom([]limits.Outcome{limits.OutcomeUnknown, limits.OutcomeSuccess, limits.OutcomeFailure}).Draw(t, "outcome")
				op.done(o)
				state := ref.stateAt(c.current)
				if op.epoch != ref.epoch {
					return
				}
				switch {
				case state == limits.BreakerHalfOpen && op.id != ref.trial:
				case state == limits.BreakerHalfOpen && o == limits.OutcomeFailure:
					ref.open(c.current, min(ref.cooldown*2, 40*time.Second))
				case o == limits.OutcomeUnknown:
					ref.trial = 0
				case o == limits.OutcomeSuccess:
					if ref.state != limits.BreakerClosed {
						ref.epoch++
					}
					ref = referenceBreaker{state: limits.BreakerClosed, epoch: ref.epoch}
				default:
					ref.failures++
					if ref.failures == 2 {
						ref.open(c.current, 10*time.Second)
					}
				}
			},
			"time": func(t *rapid.T) {
				c.advance(time.Duration(rapid.IntRange(1, 15).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				if got, want := b.State("k"), ref.stateAt(c.current); got != want {
					t.Fatalf("State() = %s, want %s", got, want)
				}
			},
		})
	})
}
