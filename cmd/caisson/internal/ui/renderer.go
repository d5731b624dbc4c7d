package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// framePeriod is the time between two frames of a live region.
const framePeriod = time.Second / 8

// answerCells is the room that choices leave for an answer, of "always" and a blank.
const answerCells = 8

// Options configure a [Renderer].
type Options struct {
	// Out is standard error.
	Out io.Writer
	// Live redraws a region at the bottom: Out is a terminal that can move
	// its cursor. Colour paints.
	Live, Colour bool
	// Reflow is set if the terminal breaks its lines anew when its width
	// changes; others leave or cut them.
	Reflow bool
	// Parked keeps the cursor in the first cell of the region at all times: rows of a
	// terminal that joins the wrong lines can't be counted.
	Parked bool
	// Size returns the terminal's columns and rows. Nil is no terminal: lines are not
	// broken, and a question has 80 columns and 24 rows.
	Size func() (columns, rows int)
	// Now is the clock; nil is time.Now. Tick asks for a frame; nil is eight a
	// second.
	Now  func() time.Time
	Tick <-chan time.Time
	// Chat shows a session of many turns: its answers too, a paragraph as soon as it is
	// complete, and nothing that goes on between turns. Redact removes secrets from them.
	Chat   bool
	Redact func(text string) string
	// Footer returns what stands at the end of the region, in at most so many lines and
	// cells; nil is nothing. It must not call the renderer.
	Footer func(cells, lines int) Footer
	// OnSuspend is called as the region leaves the screen for a question, and with false
	// as it comes back. It must not call the renderer. Nil does nothing.
	OnSuspend func(suspended bool)
	// Untold returns what the user should hear of facts about a workspace. Nil returns all.
	Untold func(workspace string, facts []string) []string
	// Words replaces signs such as ✓ by words.
	Words bool
}

// Footer is the end of a live region, and where the terminal's cursor stands in it.
type Footer struct {
	// Lines are safe, and of characters whose width is sure; see [SureWidth].
	Lines []string
	// Row is the line of the cursor and Before its text in front of the cursor, which
	// stands on a character of the line.
	Row    int
	Before string
	// At is that character.
	At string
}

// Renderer shows one session. Its methods are safe for concurrent use. Close
// it when the session has ended.
//
// A line that was committed is never written again. Below them stands the live
// region, which is erased and drawn anew, a frame at a time and each in one write,
// with SGR, CUU and ED inside mode 2026, and modes 7 and 25.
type Renderer struct {
	opts Options
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	view    *view
	pending []printed // to commit with the next frame
	region  region    // on the screen
	columns int       // at which it was drawn
	width   int       // the terminal's columns when they were last read
	changed time.Time // when they changed
	hidden  bool      // the terminal's cursor
	// above is how many rows of the screen are at least above the region. A narrower one
	// that breaks lines of the region moves so many more to the scrollback, with tmux
	// also while there are empty rows below.
	above     int
	question  string // the last row of the choices of a question
	typing    string // that row with what was typed behind it
	frame     int
	suspended bool
	closed    bool
}

// printed are lines that are committed together.
type printed struct {
	lines []string
	// verbatim lines are not broken at blanks.
	verbatim bool
}

// New makes a renderer and, for a live one, begins to redraw.
func New(o Options) *Renderer {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Renderer{opts: o, stop: make(chan struct{}), view: newView(style{o.Colour})}
	r.view.since, r.view.chat = o.Now(), o.Chat
	if o.Redact != nil {
		r.view.redact = o.Redact
	}
	if o.Untold != nil {
		r.view.untold = o.Untold
	}
	if o.Live {
		r.done.Go(r.redrawRegion)
	}
	return r
}

// redrawRegion draws a frame at each tick until Close.
func (r *Renderer) redrawRegion() {
	tick := r.opts.Tick
	if tick == nil {
		t := time.NewTicker(framePeriod)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-tick:
			r.mu.Lock()
			r.frame++
			if r.isSettled() {
				r.drawRegion()
			}
			r.mu.Unlock()
		case <-r.stop:
			return
		}
	}
}

// Record shows a record.
func (r *Renderer) Record(rec record.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opts.Size != nil {
		if r.view.columns, _ = r.terminalSize(); r.opts.Words {
			r.view.columns -= len("failed:") - 1 // in place of its sign
		}
	}
	r.commitLines(r.view.addRecord(rec))
}

// RecordWarning shows only the warnings in a record. The session's first one is needed for
// those of others.
func (r *Renderer) RecordWarning(rec record.Record) {
	switch rec.Kind {
	case record.KindSessionCreated:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.view.egress = record.PayloadOf[record.SessionCreated](rec).Egress
	case record.KindSandboxStarted:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.commitLines(r.view.lostLines(record.PayloadOf[record.SandboxStarted](rec).Attestation))
	default:
		r.Record(rec)
	}
}

// Warned reports whether a warning that was shown holds the given text.
func (r *Renderer) Warned(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.view.warned, func(w string) bool { return strings.Contains(w, text) })
}

// Delta takes a piece of live output; it is shown with the next frame.
func (r *Renderer) Delta(d runner.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lines := r.view.addDelta(d); len(lines) > 0 {
		r.commitLines(lines)
	}
}

// Draw draws a frame at once, for a key that was pressed.
func (r *Renderer) Draw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opts.Live {
		r.drawRegion()
	}
}

// SendSequence writes a sequence that changes nothing on the screen, such as a bell.
func (r *Renderer) SendSequence(sequence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(sequence)
}

// Print leaves lines of our own on the screen; they must be safe.
func (r *Renderer) Print(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commitLines(lines)
}

// PrintVerbatim is Print for lines that are not broken, such as those of a diff.
func (r *Renderer) PrintVerbatim(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, printed{lines, true})
	r.commitLines(nil)
}

// Activity describes what goes on now, in words.
func (r *Renderer) Activity() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.describeActivity(r.opts.Now())
}

// Columns returns the columns of the terminal.
func (r *Renderer) Columns() int {
	columns, _ := r.terminalSize()
	return columns
}

// Rows returns the rows of the terminal.
func (r *Renderer) Rows() int {
	_, rows := r.terminalSize()
	return rows
}

// Suspend takes the region off the screen, so that a question can stand
// there, until resume is called.
func (r *Renderer) Suspend() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave()
	r.setSuspended(true)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.setSuspended(false)
		if !r.opts.Live || r.closed {
			r.leave()
		}
	}
}

func (r *Renderer) setSuspended(on bool) {
	r.suspended = on
	if r.opts.OnSuspend != nil {
		r.opts.OnSuspend(on)
	}
}

// writeDirect writes lines while the region is off the screen: the question's own.
func (r *Renderer) writeDirect(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(strings.Join(r.spell(lines), "\n") + "\n")
}

// spell replaces the signs that begin lines by words, where that is asked for.
func (r *Renderer) spell(lines []string) []string {
	if r.opts.Words {
		lines = slices.Clone(lines)
		for i, l := range lines {
			lines[i] = spellSign(l)
		}
	}
	return lines
}

// choose writes the choices and leaves the cursor behind them, with room for an answer.
func (r *Renderer) choose(text string) {
	columns, _ := r.terminalSize()
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := choiceRows(text, columns)
	r.question = rows[len(rows)-1]
	r.typing = r.question
	r.write(strings.Join(rows, "\n"))
}

// choiceRows breaks choices between them, and leaves room for an answer.
func choiceRows(text string, columns int) []string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, " ", blankInCode), ","+blankInCode, ", ")
	rows := WrapWords(text, columns-answerCells, "  ")
	for i, row := range rows {
		rows[i] = strings.ReplaceAll(row, blankInCode, " ")
	}
	return rows
}

// answerMark begins the row of an answer that has no room behind the choices.
const answerMark = "  > "

// Retype shows what was typed so far behind the choices of a question, where the terminal
// does not echo it. It must be safe. With done the line is complete.
func (r *Renderer) Retype(typed string, done bool) {
	columns, _ := r.terminalSize()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.suspended {
		return
	}
	typed = SureWidth(typed)
	text := "\r"
	if up := rowsOf(r.typing, columns) - 1; up > 0 && r.opts.Reflow {
		text += fmt.Sprintf("\x1b[%dA", up)
	}
	text += " \x1b[J\r"
	if !done && r.question != answerMark && ansi.StringWidth(r.question+typed) >= columns {
		text += r.question + "\n"
		r.question = answerMark
	}
	if over := ansi.StringWidth(r.question+typed) - (columns - 1); over > 0 && !done { // its end is being typed
		typed = ansi.TruncateLeft(typed, over+1, "…")
	}
	r.typing = fitWidth(r.question+typed, columns-1)
	text += r.typing
	if done {
		text += "\n"
	}
	r.write(text)
}

// terminalSize returns the terminal's columns and rows.
func (r *Renderer) terminalSize() (columns, rows int) {
	if r.opts.Size == nil {
		return 80, 24
	}
	columns, rows = r.opts.Size()
	return max(columns, 2), max(rows, 2)
}

// Close takes the region off the screen and ends the redrawing.
func (r *Renderer) Close() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.leave()
	r.closed = true
	r.mu.Unlock()
	close(r.stop)
	r.done.Wait()
}

// commitLines keeps lines for the next frame, or writes them where there are no frames.
// The caller holds mu, as for all below.
func (r *Renderer) commitLines(lines []string) {
	if len(lines) > 0 {
		r.pending = append(r.pending, printed{lines: r.spell(lines)})
	}
	if !r.suspended && (!r.opts.Live || r.closed) {
		r.leave()
	}
}

// leave commits what is pending and takes the region off the screen.
func (r *Renderer) leave() {
	if !r.suspended {
		r.replaceRegion(region{})
	}
}

func (r *Renderer) write(text string) {
	if text != "" {
		_, _ = io.WriteString(r.opts.Out, text)
	}
}
