package limits

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// Outcome is an operation's result, as breakers count it.
type Outcome int

// The outcomes.
const (
	// OutcomeUnknown is neither success nor failure: the caller gave up, or a local
	// policy refused the operation.
	OutcomeUnknown Outcome = iota
	OutcomeSuccess
	OutcomeFailure
)

// With these, a host that is down costs three waits, then one every half minute, and
// finally one every five minutes.
const (
	// BreakerFailures is the number of consecutive failures that open a key.
	BreakerFailures = 3
	// BreakerCooldown is how long a key stays open the first time. Each failed trial
	// doubles it, up to BreakerMaxCooldown.
	BreakerCooldown    = 30 * time.Second
	BreakerMaxCooldown = 5 * time.Minute
	// BreakerKeys bounds the remembered keys. Beyond it, keys that are not open are
	// forgotten. If all are open, new keys are refused: they must not displace an open
	// one.
	BreakerKeys = 1024
)

// Breakers is a set of circuit breakers, one per key, such as a host. It is safe for
// concurrent use and needs no closing. Set the fields before the first use.
//
//	closed ── failures in a row ──▶ open ── cooldown over ──▶ half-open
//	   ▲                              ▲                          │ one trial at a time
//	   └──────────── success ─────────┼──────────────────────────┤
//	                                  └── failure, cooldown × 2 ─┘
type Breakers struct {
	// Name is for errors.
	Name BreakerName
	// Now is a monotonic clock; nil means time.Now.
	Now func() time.Time

	mu   sync.Mutex
	keys map[string]*breaker
}

// breaker is the state of one key. Keys without failures have none.
type breaker struct {
	failures  int
	cooldown  time.Duration // 0 while closed
	openUntil time.Time     // the start of the latest half-open phase
	// trial reports whether a trial is running while half-open.
	trial bool
	// epoch counts how often the key has opened. Outcomes of operations that began in
	// an earlier epoch are ignored.
	epoch int
}

func (b *Breakers) now() time.Time {
	if b.Now == nil {
		return time.Now()
	}
	return b.Now()
}

// Begin asks to run one operation on a key. If it is refused, the error is a
// *[TrippedError]. Otherwise the caller must call done with the outcome; later calls of
// done have no effect.
func (b *Breakers) Begin(key string) (done func(Outcome), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.keys[key]
	if k == nil {
		if !b.makeRoom() {
			return nil, &TrippedError{Breaker: b.Name, Key: key, Retry: BreakerCooldown}
		}
		return b.doneFunc(key, 0), nil
	}
	if k.cooldown > 0 {
		if left := k.openUntil.Sub(b.now()); left > 0 {
			return nil, &TrippedError{Breaker: b.Name, Key: key, Retry: left}
		}
		if k.trial {
			return nil, &TrippedError{Breaker: b.Name, Key: key}
		}
		k.trial = true
	}
	return b.doneFunc(key, k.epoch), nil
}

// makeRoom reports whether there is room for another key, after forgetting the keys
// that are not open if necessary.
func (b *Breakers) makeRoom() bool {
	if len(b.keys) >= BreakerKeys {
		now := b.now()
		maps.DeleteFunc(b.keys, func(_ string, k *breaker) bool { return !now.Before(k.openUntil) })
	}
	return len(b.keys) < BreakerKeys
}

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
		if b.keys == nil {
			b.keys = map[string]*breaker{}
		}
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

func (b *Breakers) openAfterFailure(k *breaker) {
	switch {
	case k.cooldown > 0:
		k.cooldown = min(k.cooldown*2, BreakerMaxCooldown)
	case k.failures >= BreakerFailures:
		k.cooldown = BreakerCooldown
	default:
		return
	}
	k.epoch++
	k.openUntil = b.now().Add(k.cooldown)
}

// CodeTripped is the error code of a [TrippedError].
const CodeTripped = "CIRCUIT_BREAKER_TRIPPED"

// BreakerName names a breaker in errors, records and reports.
type BreakerName string

// The breakers. Session breakers stay tripped until the session ends; a host's breaker
// closes again.
const (
	BreakerSessionCost     BreakerName = "session_cost"
	BreakerSessionTokens   BreakerName = "session_tokens"
	BreakerSessionWallTime BreakerName = "session_wall_time"
	BreakerSessionCalls    BreakerName = "session_calls"
	BreakerFetchHost       BreakerName = "fetch_host"
)

// TrippedError is the error of an operation that a breaker refused.
type TrippedError struct {
	Breaker BreakerName
	// Key is the tripped key, such as a host; "" if the breaker has no keys.
	Key string
	// Retry is the least time until the next attempt is allowed. It is 0 if the breaker
	// stays tripped or a trial is running.
	Retry time.Duration
	// Err is the *[ExceededError] that tripped a session's breaker; nil for other
	// breakers.
	Err error
}

// Code returns [CodeTripped].
func (*TrippedError) Code() string { return CodeTripped }

// Error returns a message that starts with the code.
func (e *TrippedError) Error() string {
	text := CodeTripped + ": breaker " + string(e.Breaker)
	if e.Key != "" {
		text += " of " + e.Key
	}
	switch {
	case e.Err != nil:
		text += fmt.Sprintf(": %v", e.Err)
	case e.Retry > 0:
		text += fmt.Sprintf(" is open for another %v", max(e.Retry.Round(time.Second), time.Second))
	default:
		text += " is open until a trial that is under way has ended"
	}
	return text
}

func (e *TrippedError) Unwrap() error { return e.Err }
