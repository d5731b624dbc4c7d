package egress

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/net/idna"

	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// endpoint is the subject of a question and its answer: a host or, if addr is set,
// the private address of an allowed host.
type endpoint struct {
	host string
	port uint16
	addr netip.Addr
}

// grant allows an endpoint for one command, or for the session if command is 0.
type grant struct {
	endpoint
	command int
}

type questions struct {
	// ask asks a person. It is nil if nobody can be asked.
	ask func(context.Context, Question) (Answer, error)
	// ctx ends with the session. conns counts the goroutines that ask.
	ctx   context.Context
	conns *sync.WaitGroup

	mu      sync.Mutex
	total   int // questions for people
	rulings int // questions settled without them
	open    map[endpoint]*question
	allowed map[grant]bool
	refused map[endpoint]string // the reasons people gave
	guard   func(func(error))   // deferred around ask, to turn a panic into an error
}

type question struct {
	command int
	waiters int
	cancel  context.CancelCauseFunc
	done    chan struct{}
	// Set before done is closed.
	answer Answer
	err    error
}

// errUnwaited cancels a question once no connection waits for its answer.
var errUnwaited = errors.New("no connection waits for the answer")

func (qs *questions) isGranted(r request) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	at := endpoint{r.host, r.port, r.addr}
	return qs.allowed[grant{at, 0}] || qs.allowed[grant{at, r.command}]
}

// isNameGranted reports whether an answer allows a host at any port.
func (qs *questions) isNameGranted(host string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for g, ok := range qs.allowed {
		if ok && g.host == host && !g.addr.IsValid() {
			return true
		}
	}
	return false
}

func (qs *questions) forgetCommand(command int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	maps.DeleteFunc(qs.allowed, func(g grant, _ bool) bool { return g.command != 0 && g.command == command })
}

// awaitAnswer waits for the answer to the question about r, which then has to be
// decided again. forThis reports whether the answer allows this connection alone.
// The error is a *refusal or the cause of ctx.
func (qs *questions) awaitAnswer(ctx context.Context, r request) (forThis bool, err error) {
	at := endpoint{r.host, r.port, r.addr}
	q, err := qs.joinQuestion(at, r)
	if q == nil {
		return false, err
	}
	defer qs.leaveQuestion(at, q)
	select {
	case <-q.done:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	switch {
	case qs.ctx.Err() != nil:
		<-ctx.Done() // which follows
		return false, context.Cause(ctx)
	case q.err != nil:
		f := newRefusal(rule.ReasonAskedDenied, "the question about %s was not answered", r.host)
		f.err = q.err
		return false, f
	case q.answer.Verdict == VerdictOnce:
		return q.command == 0 && r.command == 0, nil
	case q.answer.Verdict == VerdictAlways:
		return false, nil
	}
	return false, refuseAsked(r, q.answer)
}

// awaitAddress asks about the private address of a host that a person has allowed.
// It returns nil if the address is allowed.
func (qs *questions) awaitAddress(ctx context.Context, r request) error {
	for !qs.isGranted(r) {
		if forThis, err := qs.awaitAnswer(ctx, r); forThis || err != nil {
			return err
		}
	}
	return nil
}

func refuseAsked(r request, a Answer) *refusal {
	message := "a person was asked about " + r.host + " and denied it"
	if a.Unasked {
		message = r.host + " is refused without asking a person"
	}
	if a.Reason != "" {
		message += utf8text.Clip(": "+a.Reason, 512)
	}
	return newRefusal(rule.ReasonAskedDenied, "%s", message)
}

// joinQuestion joins the open question about an endpoint, or asks a new one. Without an
// error, a nil question means that the endpoint has been allowed in the meantime.
func (qs *questions) joinQuestion(at endpoint, r request) (*question, error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if note, ok := qs.refused[at]; ok {
		return nil, refuseAsked(r, Answer{Reason: note})
	}
	if qs.allowed[grant{at, 0}] || qs.allowed[grant{at, r.command}] {
		return nil, nil
	}
	if q := qs.open[at]; q != nil {
		q.waiters++
		return q, nil
	}
	if len(qs.open) >= maxOpenQuestions || qs.total >= maxQuestions || qs.rulings >= maxRulings {
		return nil, newRefusal(rule.ReasonTooManyQuestions, "too many questions about hosts; %s can't be asked about", r.host)
	}
	ctx, cancel := context.WithCancelCause(qs.ctx)
	q := &question{command: r.command, waiters: 1, cancel: cancel, done: make(chan struct{})}
	qs.total++
	qs.open[at] = q
	display, err := idna.Display.ToUnicode(r.host)
	if err != nil {
		display = r.host
	}
	ask := Question{Host: r.host, Display: display, Port: r.port, Addr: r.addr, Command: r.command, Rule: rule.AnswerRule(r.host, r.port).String()}
	qs.conns.Go(func() {
		var answer Answer
		var err error
		func() {
			defer qs.guard(func(failed error) { err = failed })
			answer, err = qs.ask(ctx, ask)
		}()
		qs.settleQuestion(ctx, at, q, answer, err)
	})
	return q, nil
}

// settleQuestion records the answer to a question. An answer that comes after the
// last connection stopped waiting allows nothing.
func (qs *questions) settleQuestion(ctx context.Context, at endpoint, q *question, answer Answer, err error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	defer q.cancel(nil)
	if qs.open[at] == q {
		delete(qs.open, at)
	}
	q.answer, q.err = answer, err
	if answer.Unasked {
		qs.total, qs.rulings = qs.total-1, qs.rulings+1
	}
	if ctx.Err() != nil {
		q.err = ctx.Err()
	}
	defer close(q.done)
	if q.err != nil {
		return
	}
	switch answer.Verdict {
	case VerdictAlways:
		qs.allowed[grant{at, 0}] = true
	case VerdictOnce:
		if q.command != 0 {
			qs.allowed[grant{at, q.command}] = true
		}
	default:
		if !answer.Unasked {
			qs.refused[at] = answer.Reason
		}
	}
}

// leaveQuestion ends one wait. The last one cancels the question.
func (qs *questions) leaveQuestion(at endpoint, q *question) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.waiters--
	if q.waiters == 0 && qs.open[at] == q {
		delete(qs.open, at)
		q.cancel(errUnwaited)
	}
}
