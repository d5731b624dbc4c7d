package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/runner"
)

// Options configure a [Renderer].
type Options struct {
	// Out is standard error.
	Out io.Writer
	// Live redraws a region at the bottom: Out is a terminal that can move
	// its cursor. Colour paints.
	Live, Colour bool
	// Width gives the terminal's width in cells; nil means 80.
	Width func() int
	// Now is the clock; nil is time.Now. Tick asks for a redraw; nil is ten a
	// second.
	Now  func() time.Time
	Tick <-chan time.Time
}

// Renderer shows one session. Its methods are safe for concurrent use. Close
// it when the session has ended.
type Renderer struct {
	opts Options
	stop chan struct{}
	done sync.WaitGroup

	mu        sync.Mutex
	view      *view
	drawn     int // lines of the region on the screen
	frame     int
	suspended bool
	held      []string // lines that came while a question stood there
	closed    bool
}

// New makes a renderer and, for a live one, begins to redraw.
func New(o Options) *Renderer {
	if o.Width == nil {
		o.Width = func() int { return 80 }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Renderer{opts: o, stop: make(chan struct{}), view: newView(style{o.Colour})}
	r.view.since = o.Now()
	if o.Live {
		r.done.Go(r.redraw)
	}
	return r
}

// redraw ticks until Close.
func (r *Renderer) redraw() {
	tick := r.opts.Tick
	if tick == nil {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-tick:
			r.mu.Lock()
			r.frame++
			r.show(nil)
			r.mu.Unlock()
		case <-r.stop:
			return
		}
	}
}

// Record shows a record.
func (r *Renderer) Record(rec runner.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.show(r.view.record(rec))
}

// Delta takes a piece of live output; it is shown with the next redraw.
func (r *Renderer) Delta(d runner.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view.delta(d)
}

// Print leaves lines of our own on the screen; they must be safe.
func (r *Renderer) Print(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.show(lines)
}

// Suspend takes the region off the screen, so that a question can stand
// there, until resume is called.
func (r *Renderer) Suspend() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.erase()
	r.suspended = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.suspended = false
		held := r.held
		r.held = nil
		r.show(held)
	}
}

// direct writes lines while the region is off the screen: the question's own.
func (r *Renderer) direct(lines ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lines {
		fmt.Fprintln(r.opts.Out, l)
	}
}

// Close takes the region off the screen and ends the redrawing.
func (r *Renderer) Close() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.erase()
	r.closed = true
	r.mu.Unlock()
	close(r.stop)
	r.done.Wait()
}

// show writes lines that stay, above the region. The caller holds mu.
func (r *Renderer) show(lines []string) {
	if r.suspended {
		r.held = append(r.held, lines...)
		return
	}
	if !r.opts.Live || r.closed {
		for _, l := range lines {
			fmt.Fprintln(r.opts.Out, l)
		}
		return
	}
	var b strings.Builder
	b.WriteString(r.eraser())
	width := r.opts.Width()
	for _, l := range lines {
		b.WriteString(ansi.Wordwrap(l, max(width-1, 20), " ") + "\n")
	}
	region := r.view.region(r.opts.Now(), spinner(r.frame))
	for _, l := range region {
		// Cut, not wrapped: a wrapped line would be two, and the count wrong.
		b.WriteString(fit(l, width-1) + "\n")
	}
	r.drawn = len(region)
	// One write, so that nothing is seen half drawn.
	_, _ = io.WriteString(r.opts.Out, b.String())
}

// eraser is what takes the region off: up to its first line, and clear to the
// end of the screen (ECMA-48 CUU and ED).
func (r *Renderer) eraser() string {
	if r.drawn == 0 {
		return ""
	}
	n := r.drawn
	r.drawn = 0
	return fmt.Sprintf("\x1b[%dA\x1b[J", n)
}

func (r *Renderer) erase() {
	if s := r.eraser(); s != "" {
		_, _ = io.WriteString(r.opts.Out, s)
	}
}

func spinner(frame int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[frame%len(frames)])
}
