package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Errors of [Broker.Answer], for errors.Is; [ErrRecord] is the third.
var (
	// ErrUnknownConfirmation says that the session never asked this, or so long
	// ago that it is forgotten.
	ErrUnknownConfirmation = errors.New("no such confirmation")
	// ErrResolved says that somebody, or the clock, was first. The error is a
	// [*ResolvedError].
	ErrResolved = errors.New("confirmation is resolved already")
)

// ResolvedError is an answer that came too late: the decision that was recorded
// stands. It is also the cause with which an [Approver]'s context ends.
type ResolvedError struct{ Resolution Resolution }

// Error names the decision and who made it.
func (e *ResolvedError) Error() string {
	by := e.Resolution.By
	if e.Resolution.Client != "" {
		by += " at " + e.Resolution.Client
	}
	return fmt.Sprintf("%v: %s by %s", ErrResolved, e.Resolution.Decision, by)
}

// Unwrap gives [ErrResolved].
func (e *ResolvedError) Unwrap() error { return ErrResolved }

// Resolution is what became of a confirmation, as it was recorded.
type Resolution struct {
	ConfirmationID string
	CallID         string
	Decision       Decision
	// Scope is how long the answer holds; it may be less than was asked for.
	Scope Scope
	// By is as in [ConfirmationResolved], Client the label of the client that
	// answered, "" where none did.
	By     string
	Client string
}

// keptResolutions bounds what a broker remembers of the past, so that late
// answers are told what was decided. A round asks at most 256 questions.
const keptResolutions = 4096

// maxLabelBytes bounds what a client says of itself, and an id that it names:
// both go into records.
const maxLabelBytes = 128

// BrokerOptions configure a [Broker]. The zero value asks the attached clients
// alone.
type BrokerOptions struct {
	// Attended says that somebody may still come: a question waits for its
	// time even where no client is attached, or none could ask anybody.
	Attended bool
}

// Broker is where the confirmations of one session are answered. Clients that
// ask a person are attached; others read [Broker.Pending] and call
// [Broker.Answer]. The first answer wins, whoever gives it; the end of the time
// and a cancellation are answers too. Nobody is told of an answer before it is
// recorded. It serves one dispatcher, whose Close waits for the clients that
// are still asking. It is safe for concurrent use, and needs no closing. The
// zero value is not useful; use [NewBroker].
//
//	dispatcher                     broker                          clients
//	──────────                     ──────                          ───────
//	                    open ────▶ pending ◀──── Answer ────────── HTTP
//	ConfirmationRequested             │
//	                 present ────▶    ├───── Approve ────────────▶ terminal
//	                                  ▼
//	ConfirmationResolved ◀─ first ─ written
//	        └─ recorded ─────────▶ resolved ── 200, or 409 ──────▶ whoever answered
//	                                  └─────── ResolvedError ────▶ whoever still asks
type Broker struct {
	opts BrokerOptions
	// awake is the clock that goes on while the machine sleeps.
	awake func() time.Duration

	mu       sync.Mutex
	bound    binding
	clients  []*client
	pending  []*inquiry // oldest first
	resolved map[string]outcomeOf
	past     []string // keys of resolved, oldest first
	attempts attempts
}

// binding is what a broker needs of its dispatcher.
type binding struct {
	emit func(Event) error
	// run starts a goroutine that the dispatcher's Close waits for.
	run func(func())
	log *zap.Logger
}

// client is one attached approver.
type client struct {
	label    string
	approver Approver
}

// outcomeOf is what is remembered of a confirmation: what was recorded, or why
// nothing could be.
type outcomeOf struct {
	resolution Resolution
	err        error
}

// NewBroker makes a broker that no client is attached to.
func NewBroker(opts BrokerOptions) *Broker {
	return &Broker{opts: opts, awake: sinceBoot, resolved: map[string]outcomeOf{}}
}

// bind makes the broker a dispatcher's.
func (b *Broker) bind(to binding) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bound.emit != nil {
		return errors.New("Options.Broker serves another dispatcher")
	}
	b.bound = to
	return nil
}

// Attach adds a client that every open and later confirmation is shown to, by
// its Approve. The label is recorded with its answers. detach ends what it is
// asking and shows it nothing more; it may be called twice.
func (b *Broker) Attach(label string, a Approver) (detach func()) {
	c := &client{label: clip(repairText(label), maxLabelBytes), approver: a}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, c)
	for _, q := range b.pending {
		b.show(q, c)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.clients = slices.DeleteFunc(b.clients, func(other *client) bool { return other == c })
		for _, q := range b.pending {
			b.leave(q, c)
		}
	}
}

// Pending are the confirmations that wait for an answer, the oldest first.
// What they point to must not be changed.
func (b *Broker) Pending() []Confirmation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Confirmation
	for _, q := range b.pending {
		if !q.written && b.ended(q) == "" {
			list = append(list, q.Confirmation)
		}
	}
	return list
}

// Answer answers one confirmation in the name of a client, and returns what was
// recorded. It waits until it is recorded, so that nobody is told of an answer
// that a crash could still lose; ctx bounds that wait alone, and the answer
// stands. Its errors wrap [ErrUnknownConfirmation], [ErrResolved], or
// [ErrRecord]: the decision could not be recorded, and nothing was allowed.
// The first two are reported as [ConfirmationAttempted].
func (b *Broker) Answer(ctx context.Context, id string, a Answer, label string) (Resolution, error) {
	label = clip(repairText(label), maxLabelBytes)
	b.mu.Lock()
	at := slices.IndexFunc(b.pending, func(q *inquiry) bool { return q.ID == id })
	if at < 0 {
		past, known := b.resolved[id]
		b.mu.Unlock()
		return b.late(id, a, label, past, known)
	}
	q := b.pending[at]
	first := b.write(q, reply{a, label, byUser})
	b.mu.Unlock()
	select {
	case <-q.recorded:
	case <-ctx.Done():
		select {
		case <-q.recorded:
		default:
			return Resolution{}, fmt.Errorf("wait for the record: %w", context.Cause(ctx))
		}
	}
	if !first || q.outcome.err != nil {
		return b.late(id, a, label, q.outcome, true)
	}
	return q.outcome.resolution, nil
}

// Misdirected reports an answer that can be nobody's, because its client named
// another turn than the question's, or what no question is called: it changes
// nothing, whatever it says. The error is as [Broker.Answer] gives it for a
// question that nobody asked.
func (b *Broker) Misdirected(id string, a Answer, label string) error {
	_, err := b.late(id, a, clip(repairText(label), maxLabelBytes), outcomeOf{}, false)
	return err
}

// Forbidden records an answer from a client without the permission for it. The
// question stays open. The error is that of the recorder.
func (b *Broker) Forbidden(id string, a Answer, label string) error {
	attempt := attemptOf(id, a, clip(repairText(label), maxLabelBytes))
	attempt.Forbidden = true
	return b.attempted(attempt)
}

// attemptOf returns the event of an answer that changes nothing, bounded.
func attemptOf(id string, a Answer, label string) ConfirmationAttempted {
	return ConfirmationAttempted{
		ConfirmationID: clip(repairText(id), maxLabelBytes), Client: label,
		Decision: Decision(clip(repairText(string(a.Decision)), maxLabelBytes)),
		Scope:    Scope(clip(repairText(string(a.Scope)), maxLabelBytes)),
	}
}

// late is the end of an answer that changes nothing: it is reported, and its
// client is told what stands.
func (b *Broker) late(id string, a Answer, label string, past outcomeOf, known bool) (Resolution, error) {
	id = clip(repairText(id), maxLabelBytes)
	if past.err != nil {
		return Resolution{}, fmt.Errorf("answer %q: %w", id, past.err)
	}
	attempt := attemptOf(id, a, label)
	var err error = &ResolvedError{past.resolution}
	if known {
		attempt.CallID, attempt.Recorded, attempt.By = past.resolution.CallID, past.resolution.Decision, past.resolution.By
	} else {
		err = fmt.Errorf("answer %q: %w", id, ErrUnknownConfirmation)
	}
	return past.resolution, errors.Join(err, b.attempted(attempt))
}

// attempted reports an answer that changed nothing, unless there are too many.
func (b *Broker) attempted(attempt ConfirmationAttempted) error {
	b.mu.Lock()
	emit := b.bound.emit
	omitted, ok := b.attempts.take(time.Now())
	b.mu.Unlock()
	if emit == nil || !ok {
		return nil
	}
	attempt.Omitted = omitted
	return emit(attempt) // what can't be recorded ends the session by itself
}

// close reports what was not reported one by one. Its dispatcher calls it.
func (b *Broker) close() {
	b.mu.Lock()
	omitted := b.attempts.omitted
	b.attempts.omitted = 0
	b.mu.Unlock()
	if omitted > 0 {
		_ = b.bound.emit(Warning{Message: fmt.Sprintf("%d more answers to confirmations changed nothing and were not recorded one by one", omitted)})
	}
}
