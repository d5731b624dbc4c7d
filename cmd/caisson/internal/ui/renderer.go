package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// framePeriod is the time between two frames of a live region.
const framePeriod = time.Second / 8

// answerCells is the room that choices leave for an answer, of "always" and a blank.
const answerCells = 8

const (
	// maxRegionLines and maxRegionCells bound the live region and a line of it, so
	// that it still fits on a screen that has become much narrower: what a terminal
	// has moved to its scrollback can't be erased.
	maxRegionLines = 8
	maxRegionCells = 80
)

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
// with SGR, CUU and ED inside mode 2026.
type Renderer struct {
	opts Options
	stop chan struct{}
	done sync.WaitGroup

	mu        sync.Mutex
	view      *view
	pending   []printed // to commit with the next frame
	region    region    // on the screen
	columns   int       // at which it was drawn
	question  string    // the last row of the choices of a question
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

// region is the content of a live region. The cursor is below its last line, or in a line of
// its footer.
type region struct {
	lines []string
	// cursor is the line of the cursor, -1 for below, before the text in front of it
	// and at the character under it.
	cursor     int
	before, at string
}

// New makes a renderer and, for a live one, begins to redraw.
func New(o Options) *Renderer {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Renderer{opts: o, stop: make(chan struct{}), view: newView(style{o.Colour}), region: region{cursor: -1}}
	r.view.since, r.view.chat = o.Now(), o.Chat
	if o.Redact != nil {
		r.view.redact = o.Redact
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
			r.drawRegion()
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
	r.commitLines(r.view.addRecord(rec))
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
	rows := WrapWords(text, columns-answerCells, "  ")
	r.question = rows[len(rows)-1]
	r.write(strings.Join(rows, "\n"))
}

// Retype shows what was typed so far behind the choices of a question, where the terminal
// does not echo it. It must be safe. With done the line is complete.
func (r *Renderer) Retype(typed string, done bool) {
	columns, _ := r.terminalSize()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.suspended {
		return
	}
	text := "\r \x1b[J\r" + fitWidth(SureWidth(r.question+typed), columns-1)
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
		r.replaceRegion(region{cursor: -1})
	}
}

// drawRegion draws a frame, unless a question stands there or nothing has changed.
func (r *Renderer) drawRegion() {
	if r.suspended || r.closed {
		return
	}
	columns, rows := r.terminalSize()
	cells, most := min(columns-1, maxRegionCells), max(min(rows*2/5, maxRegionLines), 1)
	var footer Footer
	if r.opts.Footer != nil {
		footer = r.opts.Footer(cells, max(most-1, 1))
	}
	var lines []string
	if rest := most - len(footer.Lines); rest > 0 {
		lines = r.view.regionLines(r.opts.Now(), spinnerFrame(r.frame), cells, rest)
	}
	for i, l := range lines {
		lines[i] = fitWidth(SureWidth(l), cells)
	}
	next := region{lines: append(lines, footer.Lines...), cursor: -1}
	if len(footer.Lines) > 0 {
		next.cursor, next.before, next.at = len(lines)+footer.Row, footer.Before, footer.At
	}
	if len(r.pending) == 0 && columns == r.columns && r.region.equalsRegion(next) {
		return
	}
	r.replaceRegion(next)
}

func (g region) equalsRegion(o region) bool {
	return g.cursor == o.cursor && g.before == o.before && slices.Equal(g.lines, o.lines)
}

// replaceRegion commits what is pending and puts another region below it, in one write.
func (r *Renderer) replaceRegion(next region) {
	columns, _ := r.terminalSize()
	text := r.eraseSequence(columns)
	for _, p := range r.pending {
		if r.opts.Size != nil && !p.verbatim {
			p.lines = Wrap(p.lines, columns)
		}
		for _, l := range p.lines {
			text += l + "\n"
		}
	}
	text += strings.Join(next.lines, "\n")
	switch below := len(next.lines) - 1 - next.cursor; {
	case len(next.lines) == 0:
	case next.cursor < 0:
		text += "\n"
	case below > 0:
		text += fmt.Sprintf("\x1b[%dA\r%s", below, next.before)
	default:
		text += "\r" + next.before
	}
	r.pending, r.region, r.columns = nil, next, columns
	if text != "" && r.opts.Live {
		text = "\x1b[?2026h" + text + "\x1b[?2026l"
	}
	r.write(text)
}

// eraseSequence returns what takes the region off: to the first cell of its first row, and
// clear to the end of the screen. The rows that it now stands on are counted, since
// the terminal may have broken its lines anew. The carriage return passes over what
// the terminal has echoed meanwhile, such as ^C.
func (r *Renderer) eraseSequence(columns int) string {
	if len(r.region.lines) == 0 {
		return ""
	}
	count := func(string) int { return 1 }
	if r.opts.Reflow {
		count = func(l string) int { return rowsOf(l, columns) }
	}
	rows, above := 0, r.region.lines
	if r.region.cursor >= 0 {
		above = above[:r.region.cursor]
		rows = count(r.region.before+r.region.at) - 1
	}
	for _, l := range above {
		rows += count(l)
	}
	up := ""
	if rows > 0 {
		up = fmt.Sprintf("\x1b[%dA", rows)
	}
	// Not from the first cell on: tmux takes that for clearing the screen when it is the
	// screen's first, and keeps what stood there in the scrollback.
	return "\r" + up + " \x1b[J\r"
}

func (r *Renderer) write(text string) {
	if text != "" {
		_, _ = io.WriteString(r.opts.Out, text)
	}
}

func spinnerFrame(frame int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[frame%len(frames)])
}
