package limits

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

// Outcome is how an operation ended, as its breaker counts it.
type Outcome int

// The outcomes.
const (
	// OutcomeUnknown says nothing about the other side: the caller gave up, or
	// a policy of ours refused.
	OutcomeUnknown Outcome = iota
	OutcomeSuccess
	OutcomeFailure
)

// BreakerState is the state of one key of [Breakers].
type BreakerState string

// The states.
//
//	closed ── Failures in a row ──▶ open ── cooldown over ──▶ half-open
//	   ▲                              ▲                          │ one trial at a time
//	   └──────────── success ─────────┼──────────────────────────┤
//	                                  └── failure, cooldown × 2 ─┘
const (
	BreakerClosed   BreakerState = "closed"
	BreakerOpen     BreakerState = "open"
	BreakerHalfOpen BreakerState = "half-open"
)

// Defaults of [BreakerOptions]: a host that is down costs three waits, then one
// a half minute, and at last one in five minutes.
const (
	DefaultBreakerFailures    = 3
	DefaultBreakerCooldown    = 30 * time.Second
	DefaultBreakerMaxCooldown = 5 * time.Minute
	DefaultBreakerKeys        = 1024
)

// BreakerOptions configure [Breakers]. Every zero but Name means the default.
type BreakerOptions struct {
	// Name is the breaker's, in its errors. It is needed.
	Name BreakerName
	// Failures in a row open a key.
	Failures int
	// Cooldown is how long it is open the first time; each trial that fails
	// doubles it, up to MaxCooldown.
	Cooldown, MaxCooldown time.Duration
	// Keys bounds how many keys with failures are remembered. Where it is
	// reached, those that are not open are forgotten; where all are open, a new
	// key is refused, so that new keys can't make it forget an open one.
	Keys int
	// Now is a clock that doesn't go back, nil is time.Now.
	Now func() time.Time
}

// Breakers is one circuit breaker for each key, such as a host. It is safe for
// concurrent use and holds nothing that needs closing. The zero value is not
// useful; see [NewBreakers].
type Breakers struct {
	opts BreakerOptions

	mu   sync.Mutex
	keys map[string]*breaker
}

// breaker is one key. One that never failed is not kept.
type breaker struct {
	failures  int
	cooldown  time.Duration // 0 while closed
	openUntil time.Time     // when it is half-open, or was the last time
	// trial says that one is under way while half-open.
	trial bool
	// epoch counts how often it opened. The outcome of an operation that began
	// before is ignored.
	epoch int
}

// NewBreakers makes breakers that are all closed. It fails for options that
// can't work.
func NewBreakers(o BreakerOptions) (*Breakers, error) {
	if o.Name == "" {
		return nil, errors.New("make breakers: no name")
	}
	if o.Failures < 0 || o.Cooldown < 0 || o.MaxCooldown < 0 || o.Keys < 0 {
		return nil, fmt.Errorf("make breakers %s: Failures, Cooldown, MaxCooldown and Keys must not be negative", o.Name)
	}
	if o.Failures == 0 {
		o.Failures = DefaultBreakerFailures
	}
	if o.Cooldown == 0 {
		o.Cooldown = DefaultBreakerCooldown
	}
	if o.MaxCooldown == 0 {
		o.MaxCooldown = max(DefaultBreakerMaxCooldown, o.Cooldown)
	}
	if o.MaxCooldown < o.Cooldown {
		return nil, fmt.Errorf("make breakers %s: MaxCooldown %v is less than Cooldown %v", o.Name, o.MaxCooldown, o.Cooldown)
	}
	if o.Keys == 0 {
		o.Keys = DefaultBreakerKeys
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Breakers{opts: o, keys: map[string]*breaker{}}, nil
}

// Begin asks for one operation on a key. Its error is a *[TrippedError]; without
// one, done must be called once with the operation's outcome; a second call
// does nothing.
func (b *Breakers) Begin(key string) (done func(Outcome), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.keys[key]
	if k == nil {
		if !b.makeRoom() {
			return nil, &TrippedError{Breaker: b.opts.Name, Key: key, Retry: b.opts.Cooldown}
		}
		return b.doneFunc(key, 0), nil
	}
	if k.cooldown > 0 {
		if left := k.openUntil.Sub(b.opts.Now()); left > 0 {
			return nil, &TrippedError{Breaker: b.opts.Name, Key: key, Retry: left}
		}
		if k.trial {
			return nil, &TrippedError{Breaker: b.opts.Name, Key: key}
		}
		k.trial = true
	}
	return b.doneFunc(key, k.epoch), nil
}

// makeRoom says whether another key could be remembered, and makes it.
func (b *Breakers) makeRoom() bool {
	if len(b.keys) >= b.opts.Keys {
		now := b.opts.Now()
		maps.DeleteFunc(b.keys, func(_ string, k *breaker) bool { return !now.Before(k.openUntil) })
	}
	return len(b.keys) < b.opts.Keys
}

// doneFunc gives the function that ends one operation.
func (b *Breakers) doneFunc(key string, epoch int) func(Outcome) {
	var once sync.Once
	return func(o Outcome) { once.Do(func() { b.recordOutcome(key, epoch, o) }) }
}

func (b *Breakers) recordOutcome(key string, epoch int, o Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.keys[key]
	if k == nil {
		if o != OutcomeFailure || epoch != 0 {
			return
		}
		k = &breaker{}
		b.keys[key] = k
	}
	if k.epoch != epoch {
		return
	}
	k.trial = false
	switch o {
	case OutcomeSuccess:
		k.failures, k.cooldown = 0, 0
	case OutcomeFailure:
		k.failures++
		b.openAfterFailure(k)
	}
}

// openAfterFailure opens a key that has failed often enough, or whose trial failed.
func (b *Breakers) openAfterFailure(k *breaker) {
	switch {
	case k.cooldown > 0:
		k.cooldown = min(k.cooldown*2, b.opts.MaxCooldown)
	case k.failures >= b.opts.Failures:
		k.cooldown = b.opts.Cooldown
	default:
		return
	}
	k.epoch++
	k.openUntil = b.opts.Now().Add(k.cooldown)
}

// State is a key's state now.
func (b *Breakers) State(key string) BreakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.keys[key]
	switch {
	case k == nil || k.cooldown == 0:
		return BreakerClosed
	case b.opts.Now().Before(k.openUntil):
		return BreakerOpen
	}
	return BreakerHalfOpen
}
