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

func newTestBreakers(c *clock) *limits.Breakers {
	return &limits.Breakers{Name: limits.BreakerFetchHost, Now: c.now}
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
	b := newTestBreakers(c)
	for i := range limits.BreakerFailures {
		if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
	}
	err := tryOperation(b, "a", limits.OutcomeSuccess)
	trip, ok := errors.AsType[*limits.TrippedError](err)
	if !ok || trip.Breaker != limits.BreakerFetchHost || trip.Key != "a" || trip.Retry != limits.BreakerCooldown || trip.Code() != "CIRCUIT_BREAKER_TRIPPED" {
		t.Fatalf("open: %#v", err)
	}
	if want := "CIRCUIT_BREAKER_TRIPPED: breaker fetch_host of a is open for another 30s"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if err := tryOperation(b, "other", limits.OutcomeSuccess); err != nil {
		t.Errorf("another key: %v", err)
	}
	c.advance(limits.BreakerCooldown)
	done, err := b.Begin("a")
	if err != nil {
		t.Fatalf("after the cooldown: %v", err)
	}
	if err := tryOperation(b, "a", limits.OutcomeSuccess); err == nil || !strings.Contains(err.Error(), "trial") {
		t.Errorf("a second trial: %v", err)
	}
	done(limits.OutcomeFailure)
	done(limits.OutcomeSuccess) // has no effect
	requireTripped(t, b, 2*limits.BreakerCooldown)
	c.advance(2 * limits.BreakerCooldown)
	if err := tryOperation(b, "a", limits.OutcomeUnknown); err != nil {
		t.Errorf("trial: %v", err)
	}
	if err := tryOperation(b, "a", limits.OutcomeSuccess); err != nil {
		t.Errorf("the trial after one with an unknown outcome: %v", err)
	}
	for range 2 {
		if _, err := b.Begin("a"); err != nil {
			t.Errorf("after a success: %v", err)
		}
	}
}

func TestBreakerIgnoresStaleOutcomes(t *testing.T) {
	c := newClock()
	b := newTestBreakers(c)
	old, err := b.Begin("a")
	if err != nil {
		t.Fatal(err)
	}
	for range limits.BreakerFailures {
		_ = tryOperation(b, "a", limits.OutcomeFailure)
	}
	old(limits.OutcomeSuccess)
	requireTripped(t, b, limits.BreakerCooldown)
}

func TestBreakerRemembersOpenKeys(t *testing.T) {
	c := newClock()
	b := newTestBreakers(c)
	for key := range limits.BreakerKeys {
		for range limits.BreakerFailures {
			_ = tryOperation(b, fmt.Sprint(key), limits.OutcomeFailure)
		}
	}
	if err := tryOperation(b, "new", limits.OutcomeSuccess); err == nil {
		t.Error("a new key was allowed while all keys that fit are open")
	}
	c.advance(limits.BreakerCooldown)
	if err := tryOperation(b, "new", limits.OutcomeSuccess); err != nil {
		t.Errorf("a new key while none is open: %v", err)
	}
}

func requireTripped(t *testing.T, b *limits.Breakers, retry time.Duration) {
	t.Helper()
	_, err := b.Begin("a")
	trip, ok := errors.AsType[*limits.TrippedError](err)
	if !ok || trip.Retry != retry {
		t.Fatalf("Begin(a) = %v, want it refused for %v", err, retry)
	}
}

func TestBreakerCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &limits.Breakers{Name: "x"}
		for range limits.BreakerFailures {
			if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
				t.Fatal(err)
			}
		}
		for _, cooldown := range []time.Duration{30, 60, 120, 240, 300, 300} {
			requireTripped(t, b, cooldown*time.Second)
			time.Sleep(cooldown * time.Second)
			if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestBreakerResetsFailuresOnceClosed(t *testing.T) {
	c := newClock()
	b := newTestBreakers(c)
	for range limits.BreakerFailures {
		_ = tryOperation(b, "a", limits.OutcomeFailure)
	}
	c.advance(limits.BreakerCooldown)
	_ = tryOperation(b, "a", limits.OutcomeSuccess)
	for i := range limits.BreakerFailures {
		if err := tryOperation(b, "a", limits.OutcomeFailure); err != nil {
			t.Fatalf("open after %d failures: %v", i, err)
		}
	}
	requireTripped(t, b, limits.BreakerCooldown)
}

// Keys without failures must not displace keys with failures.
func TestBreakerRemembersFailures(t *testing.T) {
	b := newTestBreakers(newClock())
	for range limits.BreakerFailures - 1 {
		_ = tryOperation(b, "a", limits.OutcomeFailure)
	}
	for key := range limits.BreakerKeys {
		_ = tryOperation(b, fmt.Sprint(key), limits.OutcomeSuccess)
	}
	_ = tryOperation(b, "a", limits.OutcomeFailure)
	requireTripped(t, b, limits.BreakerCooldown)
}

type state int

const (
	closed state = iota
	open
	halfOpen
)

// referenceBreaker is the simplest implementation of the documented state
// machine of one key.
type referenceBreaker struct {
	state    state
	failures int // consecutive failures while closed
	cooldown time.Duration
	openedAt time.Time
	trial    int // the operation that is the trial, or 0
	epoch    int // the epoch of operations whose outcome counts
}

func (r *referenceBreaker) stateAt(now time.Time) state {
	if r.state == open && now.Sub(r.openedAt) >= r.cooldown {
		r.state = halfOpen
	}
	return r.state
}

func (r *referenceBreaker) open(now time.Time, cooldown time.Duration) {
	*r = referenceBreaker{state: open, cooldown: cooldown, openedAt: now, epoch: r.epoch + 1}
}

// TestBreakerMatchesStateMachine compares random sequences of operations and
// passing time with the reference.
func TestBreakerMatchesStateMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		b := newTestBreakers(c)
		var ref referenceBreaker
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
				want := state == closed || state == halfOpen && ref.trial == 0
				done, err := b.Begin("k")
				if (err == nil) != want {
					t.Fatalf("state %d with trial %d: Begin() = %v", state, ref.trial, err)
				}
				if err != nil {
					return
				}
				if state == halfOpen {
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
				case state == halfOpen && op.id != ref.trial:
				case state == halfOpen && o == limits.OutcomeFailure:
					ref.open(c.current, min(ref.cooldown*2, limits.BreakerMaxCooldown))
				case o == limits.OutcomeUnknown:
					ref.trial = 0
				case o == limits.OutcomeSuccess:
					if ref.state != closed {
						ref.epoch++
					}
					ref = referenceBreaker{epoch: ref.epoch}
				default:
					ref.failures++
					if ref.failures == limits.BreakerFailures {
						ref.open(c.current, limits.BreakerCooldown)
					}
				}
			},
			"time": func(t *rapid.T) {
				c.advance(time.Duration(rapid.IntRange(1, 45).Draw(t, "seconds")) * time.Second)
			},
		})
	})
}
