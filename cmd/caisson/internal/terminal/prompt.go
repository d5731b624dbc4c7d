package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// Prompt asks a person at the terminal for approvals, one at a time, the oldest
// first. It is safe for concurrent use. It implements tools.Approver.
type Prompt struct {
	// In is standard input. It is not read before the first question.
	In io.Reader
	// Out shows the questions.
	Out *Renderer
	// Discard drops what was typed and not read yet, so that no key pressed
	// before the question stood there answers it; nil drops only what was read.
	Discard func()
	// Pending gives the questions that wait, the oldest first, as a broker
	// does: the order and the count come from it. Nil knows of those alone
	// that Approve was called with.
	Pending func() []tools.Confirmation

	queue queue
	start sync.Once
	lines chan typed
	// reading says that a read is under way: the last question was withdrawn
	// before anything was typed. It belongs to the question that is shown.
	reading bool
}

// typed is one read of standard input, which on a terminal is one line, and
// when it was read.
type typed struct {
	text string
	at   time.Time
	err  error
}

// Approve shows one confirmation and waits for one of the keys that it names,
// and Enter; "?" says what they mean. Everything else is no. The end of input is
// an error: nobody is there. Where another client or the clock is first, the question says so.
func (p *Prompt) Approve(ctx context.Context, c tools.Confirmation) (tools.Answer, error) {
	place, err := p.queue.enter(ctx, &c, p.Pending)
	defer p.queue.leave(&c)
	if err != nil {
		return tools.Answer{}, fmt.Errorf("ask: %w", err)
	}
	resume := p.Out.Suspend()
	defer resume()
	q := question{c, place, p.Out.view.style}
	p.Out.direct(q.lines(time.Now())...)
	if p.Discard != nil {
		p.Discard()
	}
	shown := time.Now()
	p.Out.ask(choices(c))
	for {
		select {
		case answer := <-p.read():
			p.reading = false
			if answer.text == "" && answer.err != nil {
				return tools.Answer{}, fmt.Errorf("ask: standard input ended: %w", answer.err)
			}
			if !answer.at.After(shown) {
				continue
			}
			if strings.TrimSpace(answer.text) == "?" {
				p.Out.direct(keys(c)...)
				p.Out.ask(choices(c))
				continue
			}
			decision, known := decide(answer.text, c)
			if !known {
				p.Out.direct(q.style.dim("  that is none of these keys, so it is no"))
			}
			return decision, nil
		case <-ctx.Done():
			p.Out.direct("", q.style.dim("  "+withdrawn(context.Cause(ctx))))
			return tools.Answer{}, fmt.Errorf("ask: %w", context.Cause(ctx))
		}
	}
}

// read begins to read a line, unless a read is under way. Nothing is read while
// no question stands there, so what is typed then stays with the terminal until
// it is dropped. The read of a question that was withdrawn can't be taken back;
// what it gets has the moment at which it came. There is no buffer of ours.
func (p *Prompt) read() <-chan typed {
	p.start.Do(func() { p.lines = make(chan typed, 1) })
	if !p.reading {
		p.reading = true
		go func() {
			buf := make([]byte, 4096) // the longest line of a Linux terminal (N_TTY)
			n, err := p.In.Read(buf)
			p.lines <- typed{string(buf[:n]), time.Now(), err}
		}()
	}
	return p.lines
}

// decide takes a typed line for an answer, and says whether it was one that was
// asked for; every other one is no. Only what was offered allows: "A" is more
// than "a", so their case counts, and nothing else's does.
func decide(text string, c tools.Confirmation) (answer tools.Answer, known bool) {
	text = strings.TrimSpace(text)
	session, always := offers(c, tools.ScopeSession), offers(c, tools.ScopeAlways)
	word := strings.ToLower(text)
	switch {
	case word == "y" || word == "yes":
		return tools.Answer{Decision: tools.DecisionAllow, Scope: tools.ScopeOnce}, true
	case text == "a" && session:
		return tools.Answer{Decision: tools.DecisionAllow, Scope: tools.ScopeSession}, true
	case (text == "A" || word == "always") && always:
		return tools.Answer{Decision: tools.DecisionAllow, Scope: tools.ScopeAlways}, true
	case (word == "d" || word == "never") && always:
		return tools.Answer{Decision: tools.DecisionDeny, Scope: tools.ScopeAlways}, true
	}
	return tools.Answer{Decision: tools.DecisionDeny, Scope: tools.ScopeOnce}, word == "n" || word == "no" || word == ""
}

// withdrawn says why a question needs no answer any more.
func withdrawn(cause error) string {
	resolved, ok := errors.AsType[*tools.ResolvedError](cause)
	if !ok {
		return "withdrawn"
	}
	switch r := resolved.Resolution; r.By {
	case "user":
		return line(fmt.Sprintf("answered elsewhere: %s (%s) by %s", r.Decision, r.Scope, r.Client))
	case "session":
		return line(fmt.Sprintf("settled by another answer for this session: %s", r.Decision))
	case "timeout":
		return "the time is over: refused"
	case "cancel":
		return "cancelled"
	default:
		return line(fmt.Sprintf("settled: %s by %s", r.Decision, r.By))
	}
}

// ask writes the choices and leaves the cursor behind them.
func (r *Renderer) ask(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = io.WriteString(r.opts.Out, text)
}
