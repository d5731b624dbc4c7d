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

// framePeriod is the time between frames of a live region.
const framePeriod = time.Second / 8

// answerCells is the room after choices for an answer: "always" and a blank.
const answerCells = 8

// Options configure a [Renderer].
type Options struct {
	// Out is standard error.
	Out io.Writer
	// Live redraws a region at the bottom. Out must be a terminal that can move its
	// cursor. Colour enables colours.
	Live, Colour bool
	// Reflow is set if the terminal rewraps its lines when its width changes. Other
	// terminals leave or cut them.
	Reflow bool
	// Parked always keeps the cursor in the region's first cell, for terminals that
	// join the wrong lines, so that rows can't be counted.
	Parked bool
	// Size returns the terminal's columns and rows. nil means no terminal: lines are
	// not wrapped, and questions have 80 columns and 24 rows.
	Size func() (columns, rows int)
	// Now is time.Now if nil. Tick asks for a frame. If nil, there are eight a second.
	Now  func() time.Time
	Tick <-chan time.Time
	// Chat shows a session of many turns with its answers, paragraph by paragraph, and
	// no activity between turns. Redact removes secrets from answers.
	Chat   bool
	Redact func(text string) string
	// Footer returns the end of the region, within these limits. It must not call the
	// renderer. It may be nil.
	Footer func(cells, lines int) Footer
	// OnSuspend is called with true when the region leaves the screen for a question,
	// and with false when it returns. It must not call the renderer. It may be nil.
	OnSuspend func(suspended bool)
	// Untold returns the facts about a workspace that the user should see. nil returns
	// all.
	Untold func(workspace string, facts []string) []string
	// Words replaces signs such as ✓ by words.
	Words bool
}

// Footer is the end of a live region, with the place of the terminal's cursor.
type Footer struct {
	// Lines are safe, and have only characters of certain width. See [SureWidth].
	Lines []string
	// Row is the cursor's line and Before the line's text before the cursor. At is the
	// character under it.
	Row    int
	Before string
	At     string
}

// Renderer shows one session. It is safe for concurrent use. Close it when the session
// has ended.
//
// Committed lines are never rewritten. Below them is the live region, which is erased
// and redrawn frame by frame, each in one write, with SGR, CUU and ED inside mode 2026,
// and modes 7 and 25.
type Renderer struct {
	opts Options
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	view    *view
	pending []printed // to commit with the next frame
	region  region    // on the screen
	columns int       // when it was drawn
	width   int       // the terminal's columns when last read
	changed time.Time // when they changed
	hidden  bool      // the terminal's cursor
	// above is the least number of rows above the region. If the screen becomes
	// narrower and wraps lines of the region, as many rows move to the scrollback; in
	// tmux even if there are empty rows below.
	above     int
	question  string // the last row of a question's choices
	typing    string // that row with the text typed after it
	frame     int
	suspended bool
	closed    bool
}

// printed are lines that are committed together.
type printed struct {
	lines []string
	// verbatim lines are not wrapped.
	verbatim bool
}

// New returns a renderer. A live one begins to redraw.
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

// RecordWarning shows only a record's warnings. Some of them need the session's first
// record.
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

// Warned reports whether a shown warning contains text.
func (r *Renderer) Warned(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.view.warned, func(w string) bool { return strings.Contains(w, text) })
}

// Delta takes a piece of live output, which the next frame shows.
func (r *Renderer) Delta(d runner.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lines := r.view.addDelta(d); len(lines) > 0 {
		r.commitLines(lines)
	}
}

// Draw draws a frame at once, for a pressed key.
func (r *Renderer) Draw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opts.Live {
		r.drawRegion()
	}
}

// SendSequence writes a sequence that doesn't change the screen, such as a bell.
func (r *Renderer) SendSequence(sequence string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(sequence)
}

// Print commits lines, which must be safe.
func (r *Renderer) Print(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commitLines(lines)
}

// PrintVerbatim is Print for lines that must not be wrapped, such as a diff's.
func (r *Renderer) PrintVerbatim(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, printed{lines, true})
	r.commitLines(nil)
}

// Activity describes the current activity.
func (r *Renderer) Activity() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view.describeActivity(r.opts.Now())
}

// Columns returns the terminal's columns.
func (r *Renderer) Columns() int {
	columns, _ := r.terminalSize()
	return columns
}

// Rows returns the terminal's rows.
func (r *Renderer) Rows() int {
	_, rows := r.terminalSize()
	return rows
}

// Suspend takes the region off the screen for a question, until resume is called.
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

// writeDirect writes a question's lines while the region is off the screen.
func (r *Renderer) writeDirect(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(strings.Join(r.spell(lines), "\n") + "\n")
}

// spell replaces the signs that begin lines by words, if Words is set.
func (r *Renderer) spell(lines []string) []string {
	if r.opts.Words {
		lines = slices.Clone(lines)
		for i, l := range lines {
			lines[i] = spellSign(l)
		}
	}
	return lines
}

// choose writes the choices and leaves the cursor after them, with room for an answer.
func (r *Renderer) choose(text string) {
	columns, _ := r.terminalSize()
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := choiceRows(text, columns)
	r.question = rows[len(rows)-1]
	r.typing = r.question
	r.write(strings.Join(rows, "\n"))
}

// choiceRows breaks text between choices, and leaves room for an answer.
func choiceRows(text string, columns int) []string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, " ", blankInCode), ","+blankInCode, ", ")
	rows := WrapWords(text, columns-answerCells, "  ")
	for i, row := range rows {
		rows[i] = strings.ReplaceAll(row, blankInCode, " ")
	}
	return rows
}

// answerMark begins a row for an answer without room after the choices.
const answerMark = "  > "

// Retype shows the text typed after a question's choices, if the terminal doesn't echo
// it. It must be safe. done means that the line is complete.
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
	if over := ansi.StringWidth(r.question+typed) - (columns - 1); over > 0 && !done { // show its end
		typed = ansi.TruncateLeft(typed, over+1, "…")
	}
	r.typing = fitWidth(r.question+typed, columns-1)
	text += r.typing
	if done {
		text += "\n"
	}
	r.write(text)
}

func (r *Renderer) terminalSize() (columns, rows int) {
	if r.opts.Size == nil {
		return 80, 24
	}
	columns, rows = r.opts.Size()
	return max(columns, 2), max(rows, 2)
}

// Close removes the region and ends the redrawing.
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

// commitLines keeps lines for the next frame, or writes them if there are no frames.
// The caller holds mu, as for all methods below.
func (r *Renderer) commitLines(lines []string) {
	if len(lines) > 0 {
		r.pending = append(r.pending, printed{lines: r.spell(lines)})
	}
	if !r.suspended && (!r.opts.Live || r.closed) {
		r.leave()
	}
}

// leave commits pending lines and removes the region.
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
