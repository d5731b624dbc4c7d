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
	pending   []string // lines to commit with the next frame
	region    []string // lines of the region on the screen
	columns   int      // at which it was drawn
	frame     int
	suspended bool
	closed    bool
}

// New makes a renderer and, for a live one, begins to redraw.
func New(o Options) *Renderer {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Renderer{opts: o, stop: make(chan struct{}), view: newView(style{o.Colour})}
	r.view.since = o.Now()
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
	r.view.addDelta(d)
}

// Print leaves lines of our own on the screen; they must be safe.
func (r *Renderer) Print(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commitLines(lines)
}

// Suspend takes the region off the screen, so that a question can stand
// there, until resume is called.
func (r *Renderer) Suspend() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave()
	r.suspended = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.suspended = false
		if !r.opts.Live || r.closed {
			r.leave()
		}
	}
}

// writeDirect writes lines while the region is off the screen: the question's own.
func (r *Renderer) writeDirect(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(strings.Join(lines, "\n") + "\n")
}

// choose writes the choices and leaves the cursor behind them, with room for an answer.
func (r *Renderer) choose(text string) {
	columns, _ := r.terminalSize()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(strings.Join(WrapWords(text, columns-answerCells, "  "), "\n"))
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
	r.pending = append(r.pending, lines...)
	if !r.suspended && (!r.opts.Live || r.closed) {
		r.leave()
	}
}

// leave commits what is pending and takes the region off the screen.
func (r *Renderer) leave() {
	if !r.suspended {
		r.replaceRegion(nil)
	}
}

// drawRegion draws a frame, unless a question stands there or nothing has changed.
func (r *Renderer) drawRegion() {
	if r.suspended || r.closed {
		return
	}
	columns, rows := r.terminalSize()
	cells := min(columns-1, maxRegionCells)
	region := r.view.regionLines(r.opts.Now(), spinnerFrame(r.frame), cells, max(min(rows*2/5, maxRegionLines), 1))
	for i, l := range region {
		region[i] = fitWidth(sureWidth(l), cells)
	}
	if len(r.pending) == 0 && columns == r.columns && slices.Equal(region, r.region) {
		return
	}
	r.replaceRegion(region)
}

// replaceRegion commits what is pending and puts another region below it, in one write.
func (r *Renderer) replaceRegion(region []string) {
	columns, _ := r.terminalSize()
	lines := r.pending
	if r.opts.Size != nil {
		lines = Wrap(lines, columns)
	}
	text := r.eraseSequence(columns)
	for _, l := range append(lines, region...) {
		text += l + "\n"
	}
	r.pending, r.region, r.columns = nil, region, columns
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
	if len(r.region) == 0 {
		return ""
	}
	rows := len(r.region)
	if r.opts.Reflow {
		rows = 0
		for _, l := range r.region {
			rows += rowsOf(l, columns)
		}
	}
	// Not from the first cell on: tmux takes that for clearing the screen when it is the
	// screen's first, and keeps what stood there in the scrollback.
	return fmt.Sprintf("\r\x1b[%dA \x1b[J\r", rows)
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
