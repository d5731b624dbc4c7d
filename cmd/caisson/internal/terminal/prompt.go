package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// maxDiffLines bounds the diff that a question shows.
const maxDiffLines = 200

// Prompt asks a person at the terminal for approvals, one at a time. It is safe
// for concurrent use. It implements tools.Approver.
type Prompt struct {
	// In is standard input. It is not read before the first question.
	In io.Reader
	// Out shows the questions.
	Out *Renderer
	// Discard drops what was typed and not read yet, so that no key pressed
	// before the question stood there answers it; nil drops only what was read.
	Discard func()

	one   sync.Mutex // one question at a time
	start sync.Once
	lines chan typed
	ended chan struct{}
}

// typed is one read of standard input, which on a terminal is one line, and
// when it was read.
type typed struct {
	text string
	at   time.Time
}

// Approve shows one confirmation and waits for y, a or n and Enter. Everything
// else but y and a is no. The end of input is an error: nobody is there.
func (p *Prompt) Approve(ctx context.Context, c tools.Confirmation) (tools.Answer, error) {
	p.one.Lock()
	defer p.one.Unlock()
	if ctx.Err() != nil {
		return tools.Answer{}, fmt.Errorf("ask: %w", context.Cause(ctx))
	}
	resume := p.Out.Suspend()
	defer resume()
	p.listen()
	p.Out.direct(p.question(c)...)
	if p.Discard != nil {
		p.Discard()
	}
	shown := time.Now()
	p.Out.ask(choices(c))
	for {
		select {
		case answer := <-p.lines:
			if answer.at.After(shown) {
				return decide(answer.text, c), nil
			}
		case <-p.ended:
			return tools.Answer{}, errors.New("ask: standard input ended")
		case <-ctx.Done():
			p.Out.direct("")
			return tools.Answer{}, fmt.Errorf("ask: %w", context.Cause(ctx))
		}
	}
}

// listen begins to read, once. The reader ends with its input. It reads as the
// terminal gives it, a line at a time and without a buffer of its own, so that
// each line has the moment at which it came.
func (p *Prompt) listen() {
	p.start.Do(func() {
		p.lines, p.ended = make(chan typed), make(chan struct{})
		go func() {
			defer close(p.ended)
			buf := make([]byte, 4096) // the longest line of a Linux terminal (N_TTY)
			for {
				n, err := p.In.Read(buf)
				if n > 0 {
					p.lines <- typed{string(buf[:n]), time.Now()}
				}
				if err != nil {
					return
				}
			}
		}()
	})
}

func decide(answer string, c tools.Confirmation) tools.Answer {
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return tools.Answer{Decision: tools.DecisionAllow, Scope: tools.ScopeOnce}
	case "a", "all":
		if slices.Contains(c.Scopes, tools.ScopeSession) {
			return tools.Answer{Decision: tools.DecisionAllow, Scope: tools.ScopeSession}
		}
	}
	return tools.Answer{Decision: tools.DecisionDeny, Scope: tools.ScopeOnce}
}

// question shows the exact bytes that would run, made safe by the dispatcher,
// the class, and what would change.
func (p *Prompt) question(c tools.Confirmation) []string {
	s := p.Out.view.style
	again := ""
	if c.Changed {
		again = " (again: the file has changed since)"
	}
	lines := []string{
		s.yellow(fmt.Sprintf("? %s wants to run, class %s%s", line(string(c.Name)), line(string(c.Class)), again)),
		"  " + line(c.Input),
	}
	if c.Hidden {
		lines = append(lines, s.red("  it holds characters that a terminal would not show; they are written as escapes"))
	}
	if len(c.Projected) > 0 {
		lines = append(lines, "  would change: "+line(strings.Join(c.Projected, ", ")))
	}
	n := 0
	for l := range strings.Lines(c.Diff) {
		if n++; n > maxDiffLines {
			continue
		}
		lines = append(lines, "  "+paintDiff(s, line(strings.TrimRight(l, "\n"))))
	}
	if n > maxDiffLines {
		lines = append(lines, s.yellow(fmt.Sprintf("  … %d more lines of the diff", n-maxDiffLines)))
	}
	return lines
}

func paintDiff(s style, l string) string {
	switch {
	case strings.HasPrefix(l, "+"):
		return s.green(l)
	case strings.HasPrefix(l, "-"):
		return s.red(l)
	}
	return l
}

func choices(c tools.Confirmation) string {
	if slices.Contains(c.Scopes, tools.ScopeSession) {
		return "  y once, a for this session, n no > "
	}
	return "  y once, n no > "
}

// ask writes the choices and leaves the cursor behind them.
func (r *Renderer) ask(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = io.WriteString(r.opts.Out, text)
}
