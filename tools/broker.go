package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Errors of [Broker.Answer], for errors.Is.
var (
	// ErrUnknownConfirmation says that the session never asked this, or so long
	// ago that it is forgotten.
	ErrUnknownConfirmation = errors.New("no such confirmation")
	// ErrResolved says that somebody, or the clock, was first. The error is a
	// [*ResolvedError].
	ErrResolved = errors.New("confirmation is resolved already")
)

// ResolvedError is an answer that came too late: the decision that was recorded
// stands.
type ResolvedError struct{ Resolution Resolution }

// Error names the decision and who made it.
func (e *ResolvedError) Error() string {
	return fmt.Sprintf("%v: %s by %s", ErrResolved, e.Resolution.Decision, e.Resolution.By)
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
// and a cancellation are answers too. It serves one dispatcher. It is safe for
// concurrent use, and needs no closing: when its dispatcher is closed, nothing
// is pending. The zero value is not useful; use [NewBroker].
//
//	dispatcher                     broker                          clients
//	──────────                     ──────                          ───────
//	ConfirmationRequested ───────▶ pending ──── Approve ─────────▶ terminal
//	                                  │  ◀───── Answer ─────────── HTTP
//	ConfirmationResolved ◀── first ───┘
//	        └─ recorded ─────────▶ resolved ─── 200, or 409 ─────▶ whoever answered
type Broker struct {
	opts BrokerOptions

	mu       sync.Mutex
	emit     func(Event) error
	clients  []*client
	pending  []*inquiry // oldest first
	resolved map[string]Resolution
	past     []string // keys of resolved, oldest first
}

// client is one attached approver.
type client struct {
	label    string
	approver Approver
}

// inquiry is one confirmation on its way to an answer.
type inquiry struct {
	Confirmation
	ctx context.Context //nolint:containedctx // an inquiry lives as long as the question that waits for it
	// asking are the clients that were shown it and have not given up.
	asking  map[*client]context.CancelFunc
	written bool
	reply   reply
	// answered is closed when reply is written, alone when no client is left
	// and nobody may come, recorded when the dispatcher has made the answer a
	// record: resolution is then set.
	answered, alone, recorded chan struct{}
	resolution                Resolution
}

// reply is the first answer to an inquiry.
type reply struct {
	answer Answer
	client string
	by     string
}

// NewBroker makes a broker that no client is attached to.
func NewBroker(opts BrokerOptions) *Broker {
	return &Broker{opts: opts, resolved: map[string]Resolution{}}
}

// bind makes the broker a dispatcher's.
func (b *Broker) bind(emit func(Event) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.emit != nil {
		return errors.New("Options.Broker serves another dispatcher")
	}
	b.emit = emit
	return nil
}

// Attach adds a client that every open and later confirmation is shown to, by
// its Approve. The label is recorded with its answers. detach ends what it is
// asking and shows it nothing more; it may be called twice.
func (b *Broker) Attach(label string, a Approver) (detach func()) {
	c := &client{label: label, approver: a}
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
func (b *Broker) Pending() []Confirmation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Confirmation
	for _, q := range b.pending {
		if !q.written {
			list = append(list, q.Confirmation)
		}
	}
	return list
}

// Answer answers one confirmation in the name of a client, and returns what was
// recorded. It waits until it is recorded, so that nobody is told of an answer
// that a crash could still lose; ctx bounds that wait alone. Its errors wrap
// [ErrUnknownConfirmation] or [ErrResolved], and every one of them is reported
// as [ConfirmationAttempted].
func (b *Broker) Answer(ctx context.Context, id string, a Answer, label string) (Resolution, error) {
	b.mu.Lock()
	at := slices.IndexFunc(b.pending, func(q *inquiry) bool { return q.ID == id })
	if at < 0 {
		past, ok := b.resolved[id]
		b.mu.Unlock()
		return b.late(id, a, label, past, ok)
	}
	q := b.pending[at]
	first := b.write(q, reply{a, label, "user"})
	b.mu.Unlock()
	select {
	case <-q.recorded:
	case <-ctx.Done():
		return Resolution{}, fmt.Errorf("wait for the record: %w", context.Cause(ctx))
	}
	if !first {
		return b.late(id, a, label, q.resolution, true)
	}
	return q.resolution, nil
}

// late reports an answer that changes nothing.
func (b *Broker) late(id string, a Answer, label string, past Resolution, known bool) (Resolution, error) {
	attempt := ConfirmationAttempted{ConfirmationID: id, Decision: a.Decision, Scope: a.Scope, Client: label}
	err := fmt.Errorf("answer %q: %w", id, ErrUnknownConfirmation)
	if known {
		attempt.CallID, attempt.Recorded, attempt.By = past.CallID, past.Decision, past.By
		err = &ResolvedError{past}
	}
	b.mu.Lock()
	emit := b.emit
	b.mu.Unlock()
	if emit != nil {
		_ = emit(attempt) // what can't be recorded ends the session by itself
	}
	return past, err
}

// write makes an answer the inquiry's, if it is the first and in time. The
// caller holds mu.
func (b *Broker) write(q *inquiry, r reply) bool {
	if q.written || r.by == "user" && (q.ctx.Err() != nil || !time.Now().Before(q.Expires)) {
		return false
	}
	q.written, q.reply = true, r
	for _, stop := range q.asking {
		stop()
	}
	close(q.answered)
	return true
}

// ask opens an inquiry and shows it to the attached clients. The dispatcher
// closes it with [Broker.record].
func (b *Broker) ask(ctx context.Context, c Confirmation) *inquiry {
	q := &inquiry{
		Confirmation: c, ctx: ctx, asking: map[*client]context.CancelFunc{},
		answered: make(chan struct{}), alone: make(chan struct{}), recorded: make(chan struct{}),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, q)
	for _, c := range b.clients {
		b.show(q, c)
	}
	b.checkAlone(q)
	return q
}

// show puts an inquiry to a client. The caller holds mu.
func (b *Broker) show(q *inquiry, c *client) {
	if q.written {
		return
	}
	ctx, stop := context.WithCancel(q.ctx)
	q.asking[c] = stop
	go func() {
		defer stop()
		var a Answer
		var err error
		if broken := guard(func() { a, err = c.approver.Approve(ctx, q.Confirmation) }); broken != nil {
			err = broken
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if err == nil && ctx.Err() == nil {
			b.write(q, reply{a, c.label, "user"})
		}
		b.leave(q, c)
	}()
}

// leave takes a client from an inquiry. The caller holds mu.
func (b *Broker) leave(q *inquiry, c *client) {
	if stop, ok := q.asking[c]; ok {
		stop()
		delete(q.asking, c)
		b.checkAlone(q)
	}
}

// checkAlone says so when nobody is left to answer. The caller holds mu.
func (b *Broker) checkAlone(q *inquiry) {
	if q.written || b.opts.Attended || len(q.asking) > 0 {
		return
	}
	select {
	case <-q.alone:
	default:
		close(q.alone)
	}
}

// settle ends an inquiry without a client, unless one was first.
func (b *Broker) settle(q *inquiry, a Answer, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.write(q, reply{a, "", by})
}

// record closes an inquiry with what was recorded of it.
func (b *Broker) record(q *inquiry, r Resolution) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = slices.DeleteFunc(b.pending, func(other *inquiry) bool { return other == q })
	q.resolution = r
	b.resolved[r.ConfirmationID] = r
	if b.past = append(b.past, r.ConfirmationID); len(b.past) > keptResolutions {
		delete(b.resolved, b.past[0])
		b.past = b.past[1:]
	}
	close(q.recorded)
}
