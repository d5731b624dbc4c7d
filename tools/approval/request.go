package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Values of [Resolution].By.
const (
	ByUser     = "user"
	BySession  = "session"
	ByGrant    = "grant"
	ByOnPrompt = "on_prompt"
	ByTimeout  = "timeout"
	ByCancel   = "cancel"
	ByDecider  = "decider"
)

// errConfirmTimeout is the cause of a request's context at its deadline.
var errConfirmTimeout = errors.New("confirmation timed out")

// errClientExit means that a client ended its goroutine.
var errClientExit = errors.New("the client ended its goroutine without returning")

// Request is one confirmation until its resolution is recorded. Its broker's lock
// guards it; what is set before a channel is closed may be read after that.
type Request struct {
	Confirmation
	ctx    context.Context //nolint:containedctx // a request lives as long as the call that waits for it
	cancel context.CancelFunc
	// until is Expires on the clock that runs while the machine sleeps.
	until time.Duration
	// delivered reports that the request is recorded, so clients may be shown it.
	delivered bool
	// asking holds the clients that were shown the request and have not given up.
	asking   map[*client]context.CancelCauseFunc
	resolved bool
	reply    Reply
	// answered is closed when reply is set, alone when no client is left and none
	// may come, and recorded when outcome is set.
	answered, alone, recorded chan struct{}
	outcome                   outcome
}

// Reply is the first answer to a request.
type Reply struct {
	Answer Answer
	// Client is the label of the client that answered, or "".
	Client string
	// By is as in [Resolution].
	By string
}

// outcome is the recorded resolution, or why it could not be recorded.
type outcome struct {
	resolution Resolution
	err        error
}

// Request makes a confirmation known before anyone can hear of it, so that an
// answer finds it. The caller reports it, calls [Broker.Deliver] and [Broker.Wait],
// and ends it with [Broker.Record].
func (b *Broker) Request(ctx context.Context, c Confirmation) *Request {
	ctx, cancel := context.WithDeadlineCause(ctx, c.Expires, errConfirmTimeout)
	q := &Request{
		Confirmation: c, ctx: ctx, cancel: cancel, asking: map[*client]context.CancelCauseFunc{},
		answered: make(chan struct{}), alone: make(chan struct{}), recorded: make(chan struct{}),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q.until = b.opts.Uptime() + time.Until(c.Expires)
	b.pending = append(b.pending, q)
	return q
}

// Deliver shows requests, in order, to all clients attached now or later.
func (b *Broker) Deliver(requests ...*Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range requests {
		q.delivered = true
		for _, c := range b.clients {
			b.showRequest(q, c)
		}
		b.checkAlone(q)
	}
}

// showRequest asks a client. The caller holds mu. The client's context ends only
// when the resolution is recorded, so that its cause is the recorded resolution.
func (b *Broker) showRequest(q *Request, c *client) {
	if !q.delivered || q.resolved || q.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancelCause(context.WithoutCancel(q.ctx))
	q.asking[c] = stop
	b.bound.Go(func() {
		var a Answer
		err := errClientExit
		defer func() { // also if the client ends this goroutine
			b.mu.Lock()
			defer b.mu.Unlock()
			if err == nil && ctx.Err() == nil {
				b.resolve(q, Reply{a, c.label, ByUser})
			}
			b.removeClient(q, c)
		}()
		a, err = callApprover(ctx, c.approver, q.Confirmation)
		if err != nil && ctx.Err() == nil {
			b.bound.Logger.Warn("a client could not ask", zap.String("client", c.label), zap.String("confirmation", q.ID), zap.Error(err))
		}
	})
}

// callApprover turns an approver's panic into an error.
func callApprover(ctx context.Context, a Approver, c Confirmation) (answer Answer, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return a.Approve(ctx, c)
}

// removeClient removes a client from a request. The caller holds mu.
func (b *Broker) removeClient(q *Request, c *client) {
	if stop, ok := q.asking[c]; ok {
		stop(context.Canceled)
		delete(q.asking, c)
		b.checkAlone(q)
	}
}

// checkAlone closes q.alone if no client is left and none is expected. The caller
// holds mu.
func (b *Broker) checkAlone(q *Request) {
	if q.resolved || b.opts.Attended || !q.delivered || len(q.asking) > 0 {
		return
	}
	select {
	case <-q.alone:
	default:
		close(q.alone)
	}
}

// endedBy returns ByTimeout or ByCancel if a request ended without an answer, else
// "". Either clock ends it, so that neither setting the clock nor a sleep of the
// machine extends it. The caller holds mu.
func (b *Broker) endedBy(q *Request) string {
	switch {
	case q.ctx.Err() != nil && !errors.Is(context.Cause(q.ctx), errConfirmTimeout):
		return ByCancel
	case q.ctx.Err() != nil, !time.Now().Before(q.Expires), b.opts.Uptime() >= q.until:
		return ByTimeout
	}
	return ""
}

// resolve makes r the reply if it is the first and in time, and reports whether it
// is. A late reply resolves the request by its end. The caller holds mu.
func (b *Broker) resolve(q *Request, r Reply) bool {
	if q.resolved {
		return false
	}
	wanted := r.By
	r.Answer.Reason = cleanReason(r.Answer)
	if by := b.endedBy(q); by != "" {
		r = Reply{By: by}
	}
	q.resolved, q.reply = true, r
	close(q.answered)
	return r.By == wanted
}

// resolveAlone resolves a request without a client, unless a reply came first.
func (b *Broker) resolveAlone(q *Request, a Answer, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resolve(q, Reply{Answer: a, By: by})
}

// Wait returns the first reply to a request: a client's answer, a timeout, a
// cancellation, ByOnPrompt if no client is left, or the session's answer to another
// request. earlier returns such an answer; Wait calls it again each time answers
// change.
func (b *Broker) Wait(q *Request, answers *SessionAnswers, earlier func() (Decision, bool)) Reply {
	for {
		changed := answers.Changed()
		if d, ok := earlier(); ok {
			b.resolveAlone(q, Answer{Decision: d, Scope: ScopeSession}, BySession)
		}
		select {
		case <-q.answered:
			return q.reply
		case <-changed:
			continue
		case <-q.ctx.Done():
			b.resolveAlone(q, Answer{}, ByCancel) // or ByTimeout, which resolve detects
		case <-q.alone:
			b.resolveAlone(q, Answer{}, ByOnPrompt)
		}
		return q.reply
	}
}

// Record ends a request with its recorded resolution, or with the error that
// prevented recording it, and tells all clients.
func (b *Broker) Record(q *Request, r Resolution, err error) {
	q.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = slices.DeleteFunc(b.pending, func(other *Request) bool { return other == q })
	q.outcome = outcome{r, err}
	b.past[q.ID] = q.outcome
	if b.pastIDs = append(b.pastIDs, q.ID); len(b.pastIDs) > maxPast {
		delete(b.past, b.pastIDs[0])
		b.pastIDs = b.pastIDs[1:]
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
