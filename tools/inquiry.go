package tools

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
)

// By whom a confirmation is resolved; see [ConfirmationResolved].
const (
	byUser     = "user"
	bySession  = "session"
	byGrant    = "grant"
	byOnPrompt = "on_prompt"
	byTimeout  = "timeout"
	byCancel   = "cancel"
)

// errConfirmTimeout is the cause of a question whose time is over.
var errConfirmTimeout = errors.New("confirmation timed out")

// inquiry is one confirmation on its way to an answer. Its broker's lock guards
// it; what is set before a channel is closed may be read after it.
type inquiry struct {
	Confirmation
	ctx    context.Context //nolint:containedctx // an inquiry lives as long as the question that waits for it
	cancel context.CancelFunc
	// until is Expires on the clock that goes on while the machine sleeps.
	until time.Duration
	// shown says that clients are asked: its request is recorded.
	shown bool
	// asking are the clients that were shown it and have not given up.
	asking  map[*client]context.CancelCauseFunc
	written bool
	reply   reply
	// answered is closed when reply is written, alone when no client is left
	// and nobody may come, recorded when the dispatcher has made the answer a
	// record, or could not: outcome is then set.
	answered, alone, recorded chan struct{}
	outcome                   outcomeOf
}

// reply is the first answer to an inquiry.
type reply struct {
	answer Answer
	client string
	by     string
}

// open makes a confirmation known, so that an answer finds it from the moment
// at which somebody can know of it. Clients are asked by [Broker.present], and
// [Broker.record] closes it.
func (b *Broker) open(ctx context.Context, c Confirmation) *inquiry {
	ctx, cancel := context.WithDeadlineCause(ctx, c.Expires, errConfirmTimeout)
	q := &inquiry{
		Confirmation: c, ctx: ctx, cancel: cancel, asking: map[*client]context.CancelCauseFunc{},
		answered: make(chan struct{}), alone: make(chan struct{}), recorded: make(chan struct{}),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q.until = b.awake() + time.Until(c.Expires)
	b.pending = append(b.pending, q)
	return q
}

// present shows inquiries to the attached clients, in order.
func (b *Broker) present(all ...*inquiry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range all {
		q.shown = true
		for _, c := range b.clients {
			b.show(q, c)
		}
		b.checkAlone(q)
	}
}

// show puts an inquiry to a client. The caller holds mu. The client's context
// ends with the record, and not before: what it then sees as the cause is true.
func (b *Broker) show(q *inquiry, c *client) {
	if !q.shown || q.written || q.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancelCause(context.WithoutCancel(q.ctx))
	q.asking[c] = stop
	b.bound.run(func() {
		var a Answer
		err := errNoReturn
		defer func() { // also where the client ends this goroutine
			b.mu.Lock()
			defer b.mu.Unlock()
			if err == nil && ctx.Err() == nil {
				b.write(q, reply{a, c.label, byUser})
			}
			b.leave(q, c)
		}()
		if broken := guard(func() { a, err = c.approver.Approve(ctx, q.Confirmation) }); broken != nil {
			err = broken
		}
		if err != nil && ctx.Err() == nil {
			b.bound.log.Warn("a client could not ask", zap.String("client", c.label), zap.String("confirmation", q.ID), zap.Error(err))
		}
	})
}

// leave takes a client from an inquiry. The caller holds mu.
func (b *Broker) leave(q *inquiry, c *client) {
	if stop, ok := q.asking[c]; ok {
		stop(context.Canceled)
		delete(q.asking, c)
		b.checkAlone(q)
	}
}

// checkAlone says so when nobody is left to answer. The caller holds mu.
func (b *Broker) checkAlone(q *inquiry) {
	if q.written || b.opts.Attended || !q.shown || len(q.asking) > 0 {
		return
	}
	select {
	case <-q.alone:
	default:
		close(q.alone)
	}
}

// ended says by what an inquiry is over though no answer was written yet:
// "timeout", "cancel", or "" where it isn't. The time is over when it is on
// either clock, so neither a change of the clock nor a sleep of the machine
// makes it longer. The caller holds mu.
func (b *Broker) ended(q *inquiry) string {
	switch {
	case q.ctx.Err() != nil && !errors.Is(context.Cause(q.ctx), errConfirmTimeout):
		return byCancel
	case q.ctx.Err() != nil, !time.Now().Before(q.Expires), b.awake() >= q.until:
		return byTimeout
	}
	return ""
}

// write makes an answer the inquiry's, if it is the first and in time, and
// says whether it is. An answer that is too late makes that the end. The caller
// holds mu.
func (b *Broker) write(q *inquiry, r reply) bool {
	if q.written {
		return false
	}
	wanted := r.by
	if by := b.ended(q); by != "" {
		r = reply{by: by}
	}
	q.written, q.reply = true, r
	close(q.answered)
	return r.by == wanted
}

// settle ends an inquiry without a client, unless one was first.
func (b *Broker) settle(q *inquiry, a Answer, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.write(q, reply{a, "", by})
}

// record closes an inquiry with what was recorded of it, or with why nothing
// could be, and tells everybody.
func (b *Broker) record(q *inquiry, r Resolution, err error) {
	q.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = slices.DeleteFunc(b.pending, func(other *inquiry) bool { return other == q })
	q.outcome = outcomeOf{r, err}
	b.resolved[q.ID] = q.outcome
	if b.past = append(b.past, q.ID); len(b.past) > keptResolutions {
		delete(b.resolved, b.past[0])
		b.past = b.past[1:]
	}
	cause := err
	if cause == nil {
		cause = &ResolvedError{r}
	}
	for _, stop := range q.asking {
		stop(cause)
	}
	close(q.recorded)
}
