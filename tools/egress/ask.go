package egress

import (
	"context"

	"golang.org/x/net/idna"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// endpoint is what a question and its answer are about.
type endpoint struct {
	host string
	port uint16
}

// grant is an answer that allows an endpoint, for one command or for the session
// (command 0).
type grant struct {
	endpoint
	command int
}

// questions are the open questions and the answers. The server's lock guards it.
type questions struct {
	total      int // that were asked
	open       map[endpoint]*question
	allowed    map[grant]bool
	refused    map[endpoint]string // the notes of people who denied
	generation int                 // counts policies, so that no answer outlives its own
}

// question is one open question.
type question struct {
	command    int
	generation int
	waiters    int
	cancel     context.CancelFunc
	done       chan struct{}
	// These are set when done is closed. Current reports whether the policy is still
	// the one under which the question was asked.
	answer  Answer
	current bool
	err     error
}

func newQuestions() questions {
	return questions{open: map[endpoint]*question{}, allowed: map[grant]bool{}, refused: map[endpoint]string{}}
}

// isGranted reports whether an answer allows a request.
func (q *questions) isGranted(r request) bool {
	at := endpoint{r.host, r.port}
	return q.allowed[grant{at, 0}] || q.allowed[grant{at, r.command}]
}

// grantedName reports whether an answer allows a host at some port.
func (q *questions) grantedName(host string) bool {
	for g := range q.allowed {
		if g.host == host {
			return true
		}
	}
	return false
}

// forgetAllowed forgets the answers that allow.
func (q *questions) forgetAllowed() {
	clear(q.allowed)
	q.generation++
}

// ask waits for the answer to the question about a request, which then has to be
// decided again. It reports whether the answer allows it for this connection alone.
// The error is a *refusal or the cause of ctx.
func (s *Server) ask(ctx context.Context, r request) (forThis bool, err error) {
	at := endpoint{r.host, r.port}
	q, err := s.joinQuestion(at, r)
	if err != nil {
		return false, err
	}
	defer s.leaveQuestion(at, q)
	select {
	case <-q.done:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	switch {
	case s.ctx.Err() != nil:
		<-ctx.Done() // which follows
		return false, context.Cause(ctx)
	case q.err != nil:
		f := deny(rule.ReasonAskedDenied, "the question about %s was not answered", r.host)
		f.err = q.err
		return false, f
	case q.answer.Verdict == VerdictOnce:
		return q.current && q.command == 0 && r.command == 0, nil
	case q.answer.Verdict == VerdictAlways:
		return false, nil
	}
	return false, refuseAsked(r, q.answer.Reason)
}

// refuseAsked returns the refusal of a person.
func refuseAsked(r request, note string) *refusal {
	if note != "" {
		note = ": " + note
	}
	return deny(rule.ReasonAskedDenied, "a person was asked about %s and denied it%s", r.host, clip(note, 512))
}

// joinQuestion returns the open question about an endpoint, and asks it if there is
// none.
func (s *Server) joinQuestion(at endpoint, r request) (*question, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if note, ok := s.asked.refused[at]; ok {
		return nil, refuseAsked(r, note)
	}
	if q := s.asked.open[at]; q != nil {
		q.waiters++
		return q, nil
	}
	if len(s.asked.open) >= maxOpenQuestions || s.asked.total >= maxQuestions {
		return nil, deny(rule.ReasonTooManyQuestions, "too many questions about hosts; %s can't be asked about", r.host)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	q := &question{command: r.command, generation: s.asked.generation, waiters: 1, cancel: cancel, done: make(chan struct{})}
	s.asked.total++
	s.asked.open[at] = q
	display, err := idna.Display.ToUnicode(r.host)
	if err != nil {
		display = r.host
	}
	ask := Question{Host: r.host, Display: display, Port: r.port, Command: r.command, Rule: rule.AnswerRule(r.host, r.port).String()}
	s.conns.Go(func() {
		answer, err := s.opts.Ask(ctx, ask)
		s.settleQuestion(ctx, at, q, answer, err)
	})
	return q, nil
}

// settleQuestion takes the answer to a question. One that comes when no connection
// waits any more, or when there is another policy, allows nothing.
func (s *Server) settleQuestion(ctx context.Context, at endpoint, q *question, answer Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer q.cancel()
	if s.asked.open[at] == q {
		delete(s.asked.open, at)
	}
	q.answer, q.err = answer, err
	if ctx.Err() != nil {
		q.err = ctx.Err()
	}
	defer close(q.done)
	if q.err != nil {
		return
	}
	q.current = q.generation == s.asked.generation
	switch answer.Verdict {
	case VerdictAlways:
		s.asked.allowed[grant{at, 0}] = q.current
	case VerdictOnce:
		if q.command != 0 {
			s.asked.allowed[grant{at, q.command}] = q.current
		}
	default:
		s.asked.refused[at] = answer.Reason
	}
}

// leaveQuestion ends one wait. The last one cancels the question.
func (s *Server) leaveQuestion(at endpoint, q *question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.waiters--
	if q.waiters == 0 && s.asked.open[at] == q {
		delete(s.asked.open, at)
		q.cancel()
	}
}
