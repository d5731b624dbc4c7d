package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/approval"
)

// Prompt asks the user at the terminal for approvals, one at a time, the oldest first.
// It is safe for concurrent use. It implements approval.Approver.
type Prompt struct {
	// In is standard input. It is not read before the first question.
	In  io.Reader
	Out *Renderer
	// Pressed drops unread input, waits for a key, and reports whether there was one.
	// It drops the key too. If nil, only input that was read is dropped.
	Pressed func(ctx context.Context, wait time.Duration) (bool, error)
	// Keys makes In deliver single keys. If nil, In delivers lines.
	Keys Keys
	// Pending returns the confirmations that wait here or elsewhere, for their order and
	// count.
	Pending func() []approval.Confirmation

	queue queue
	start sync.Once
	lines chan typedLine
	ended bool
	// reading is set during a read: the last question may have been withdrawn before
	// anything was typed. The read is then for the current question.
	reading bool
	single  bool
}

// Keys is a keyboard that can deliver single keys.
type Keys interface {
	// SetSingle makes it deliver single keys, without echo, or lines.
	SetSingle(on bool)
	// Typed returns the next typed text while it delivers single keys, or "" after
	// wait.
	Typed(ctx context.Context, wait time.Duration) (string, error)
}

// typedLine is one read of standard input, with its time. On a terminal that is a line
// or a key.
type typedLine struct {
	text string
	at   time.Time
	err  error
}

const (
	// quietTime is how long the keyboard must be quiet before a key counts.
	quietTime = 500 * time.Millisecond
	// alone is how long only Enter may follow a key: otherwise the user is typing a
	// text, not an answer. Most people take less time between letters.
	alone = 400 * time.Millisecond
	// pageRows is the least number of rows that v shows at once: terminals scroll back.
	pageRows = 200
)

var errInputEnded = errors.New("standard input ended")

// Approve shows one confirmation and waits for one of its keys, or a line with it. "?"
// explains the keys. Any other line means no. It allows nothing that was not shown
// completely, in the question or page by page. A key counts if the question is shown,
// the keyboard was quiet before it, and nothing but Enter follows at once. The end of
// input is an error; no later question is then shown. If another client or the timeout
// is first, the question shows that.
func (p *Prompt) Approve(ctx context.Context, c approval.Confirmation) (approval.Answer, error) {
	place, err := p.queue.enterQueue(ctx, &c, p.Pending)
	defer p.queue.leaveQueue(&c)
	if err != nil {
		return approval.Answer{}, fmt.Errorf("ask: %w", err)
	}
	if p.ended {
		return approval.Answer{}, fmt.Errorf("ask: %w", errInputEnded)
	}
	resume := p.Out.Suspend()
	defer resume()
	answer, err := p.askOnce(ctx, question{c, place, p.Out.view.style})
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
		p.Out.writeDirect("", p.Out.view.style.dim("  "+describeWithdrawal(err)))
	case errors.Is(err, errInputEnded):
		p.ended = true
		p.Out.writeDirect("", p.Out.view.style.dim("  standard input ended: no more questions"))
	}
	if err != nil {
		return approval.Answer{}, fmt.Errorf("ask: %w", err)
	}
	return answer, nil
}

func (p *Prompt) askOnce(ctx context.Context, q question) (approval.Answer, error) {
	c := q.Confirmation
	columns, rows := p.Out.terminalSize()
	room := rows - len(choiceRows(choices(c, true, true, p.Keys != nil), columns))
	lines, seen := q.boundedLines(time.Now(), columns, room)
	p.Out.writeDirect(lines...)
	if err := p.awaitQuiet(ctx); err != nil {
		return approval.Answer{}, err
	}
	shown := time.Now()
	p.setKeys(true)
	defer p.setKeys(false)
	for {
		p.Out.choose(choices(c, seen, len(p.queue.listWaiting(p.Pending)) > 1, p.single))
		text, err := p.readTyped(ctx, shown)
		if err != nil {
			return approval.Answer{}, err
		}
		switch text {
		case noKey:
			p.Out.writeDirect(q.style.dim("  that was no single key, so it answers nothing"))
			continue
		case "?":
			p.Out.writeDirect(keys(c, columns, p.single)...)
			continue
		case "l":
			p.Out.writeDirect(waitingLines(p.queue.listWaiting(p.Pending), c, columns)...)
			continue
		case "v":
			whole, paged, err := p.showPage(ctx, q, shown)
			if err != nil {
				return approval.Answer{}, err
			}
			if seen = seen || whole; paged {
				p.Out.writeDirect(lines...)
			}
			continue
		}
		answer, known := decideKey(text, c)
		if p.single && text == "r" {
			known = true
			if answer.Reason, err = p.askReason(ctx, shown); err != nil {
				return approval.Answer{}, err
			}
		}
		if n := utf8.RuneCountInString(answer.Reason); n > approval.MaxReasonCharacters {
			p.Out.writeDirect(q.style.yellow(fmt.Sprintf("  the reason has %d characters; the model gets the first %d", n, approval.MaxReasonCharacters)))
		}
		switch {
		case answer.Decision == approval.DecisionAllow && !seen:
			p.Out.writeDirect(q.style.yellow("  not all of it was shown: nothing is allowed before v has shown the whole"))
			continue
		case !known && p.single && utf8.RuneCountInString(text) == 1:
			p.Out.writeDirect(q.style.dim("  that is none of these keys"))
			continue
		case !known:
			p.Out.writeDirect(q.style.dim("  that is none of these keys, so it is no"))
		}
		return answer, nil
	}
}

// askReason asks for a line with the reason of a refusal.
func (p *Prompt) askReason(ctx context.Context, shown time.Time) (string, error) {
	p.setKeys(false)
	for began, first := time.Now(), true; ; first = false {
		p.Out.choose("  no, because > ")
		reason, err := p.readTyped(ctx, shown)
		if err != nil || reason != "" || !first || time.Since(began) > alone {
			return reason, err
		} // or the Enter of someone who thinks that r needs it
	}
}

// setKeys makes In deliver single keys, if it can, or lines.
func (p *Prompt) setKeys(on bool) {
	if p.Keys != nil && p.single != on {
		p.Keys.SetSingle(on)
		p.single = on
	}
}

// awaitQuiet drops input until nothing more comes.
func (p *Prompt) awaitQuiet(ctx context.Context) error {
	if p.Pressed == nil {
		return nil
	}
	for told := false; ; {
		pressed, err := p.Pressed(ctx, quietTime)
		if err != nil || !pressed {
			return err
		}
		if !told {
			columns, _ := p.Out.terminalSize()
			for _, row := range WrapWords("  keys count once none was pressed for half a second", columns-1, "  ") {
				p.Out.writeDirect(p.Out.view.style.dim(row))
			}
			told = true
		}
	}
}

// showPage shows the complete question, a screen at a time. It reports whether all of
// it was shown, and whether it took several screens.
func (p *Prompt) showPage(ctx context.Context, q question, shown time.Time) (whole, paged bool, err error) {
	columns, height := p.Out.terminalSize()
	rows := q.allLines(time.Now(), columns)
	choice := func() string {
		return fmt.Sprintf("  %s more: Enter next, e to the end, q back > ", limits.FormatCount(len(rows), "row"))
	}
	for size := max(height-len(choiceRows(choice(), columns)), pageRows); ; {
		n := min(size, len(rows))
		p.Out.writeDirect(rows[:n]...)
		if rows = rows[n:]; len(rows) == 0 {
			return true, paged, nil
		}
		paged = true
		p.Out.choose(choice())
		text, err := p.readTyped(ctx, shown)
		switch {
		case err != nil:
			return false, paged, err
		case text == noKey:
		case text == "e":
			size = len(rows)
		case strings.TrimSpace(text) != "":
			return false, paged, nil
		}
	}
}

// readTyped returns the next key, or line without blanks around it, that was typed
// after a time.
func (p *Prompt) readTyped(ctx context.Context, after time.Time) (string, error) {
	line := ""
	for {
		select {
		case got := <-p.readLine():
			p.reading = false
			switch {
			case got.text == "" && got.err != nil && line == "", p.single && got.text == endOfInput:
				return "", errInputEnded
			case !got.at.After(after):
			case !p.single:
				// Text typed while the terminal began to collect lines comes
				// separately.
				if line += got.text; got.err != nil || strings.HasSuffix(line, "\n") {
					return strings.TrimSpace(line), nil
				}
			case strings.HasSuffix(got.text, "\n"):
				p.Out.writeDirect(safeLine(strings.TrimSpace(got.text)))
				return strings.TrimSpace(got.text), nil
			default:
				return p.endKey(ctx, got.text)
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// endKey returns a key once nothing, or one Enter, has followed it. It drops anything
// else, which is a sequence, a paste or a text. After r, the rest is the reason.
func (p *Prompt) endKey(ctx context.Context, key string) (string, error) {
	single := isKey(key)
	if single {
		p.Out.writeDirect(key)
	} else {
		p.Out.writeDirect("")
	}
	rest, more := "", key != "r"
	for more {
		typed, err := p.Keys.Typed(ctx, alone)
		if err != nil {
			return "", err
		}
		rest, more = rest+typed, typed != ""
	}
	if !single || rest != "" && rest != "\n" {
		return noKey, nil
	}
	return key, nil
}

// noKey stands for input that is no single key. No line equals it.
const noKey = "\n"

// endOfInput is Ctrl-D, which a terminal delivers unless it collects lines.
const endOfInput = "\x04"

// isKey reports whether a text is a single graphic character.
func isKey(text string) bool {
	r, size := utf8.DecodeRuneInString(text)
	return size == len(text) && r != utf8.RuneError && unicode.IsGraphic(r)
}

// readLine begins to read a line, unless a read is running. Nothing is read without a
// question, so that input stays in the terminal until it is dropped. A withdrawn
// question's read can't be cancelled, but its result has the time. There must be no
// buffer.
func (p *Prompt) readLine() <-chan typedLine {
	p.start.Do(func() { p.lines = make(chan typedLine, 1) })
	if !p.reading {
		p.reading = true
		go func() {
			buf := make([]byte, 4096) // the longest line of a Linux terminal (N_TTY)
			n, err := p.In.Read(buf)
			p.lines <- typedLine{string(buf[:n]), time.Now(), err}
		}()
	}
	return p.lines
}

// decideKey returns the answer of a typed line, and whether it is one of the offered
// keys. Any other line means no. Only "A" and "a" are case-sensitive, because "A"
// allows more. The text after a refusal's key is its reason.
func decideKey(text string, c approval.Confirmation) (answer approval.Answer, known bool) {
	session, always := offers(c, approval.ScopeSession), offers(c, approval.ScopeAlways)
	word := strings.ToLower(text)
	if end := strings.IndexAny(text, " ,:"); end > 0 {
		refusal, known := decideKey(text[:end], c)
		if known && refusal.Decision == approval.DecisionDeny {
			refusal.Reason = strings.TrimLeft(text[end:], " ,:")
			return refusal, true
		}
	}
	switch {
	case word == "y" || word == "yes":
		return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, true
	case text == "a" && session:
		return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, true
	case (text == "A" || word == "always") && always:
		return approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}, true
	case (word == "d" || word == "never") && always:
		return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeAlways}, true
	}
	return approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, word == "n" || word == "no" || word == ""
}

// describeWithdrawal returns why a question needs no answer.
func describeWithdrawal(cause error) string {
	resolved, ok := errors.AsType[*approval.ResolvedError](cause)
	if !ok {
		return "withdrawn"
	}
	switch r := resolved.Resolution; r.By {
	case "user":
		return safeLine(fmt.Sprintf("answered elsewhere: %s (%s) by %s", r.Decision, r.Scope, r.Client))
	case "session":
		return safeLine(fmt.Sprintf("settled by another answer for this session: %s", r.Decision))
	case "timeout":
		return "the time is over: refused"
	case "cancel":
		return "cancelled"
	default:
		return safeLine(fmt.Sprintf("settled: %s by %s", r.Decision, r.By))
	}
}
