package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxRegionLines bounds the live region, so that it still fits on a screen that has become
// much narrower: what a terminal has moved to its scrollback can't be erased.
const maxRegionLines = 8

// regionCells are the widths of a live region, of which the widest that fits is taken. They
// are few, so that a screen that becomes narrower a column at a time rarely breaks its lines.
var regionCells = []int{79, 59, narrowColumns - 1}

// narrowColumns are the columns of the narrowest screen on which no row of a region is left.
const narrowColumns = 40

// settleTime is how long the width of a terminal was the same before a region is drawn whose
// rows are counted: tmux tells a program of a change up to 250 ms later.
const settleTime = 500 * time.Millisecond

// region is the content of a live region.
type region struct {
	lines []string
	// parked is set if the cursor rests in the first cell: the region is then erased
	// without counting rows, whatever the width is by the time the terminal reads that.
	parked bool
	// cursor is otherwise the line of the cursor, before the text in front of it and at
	// the character under it.
	cursor     int
	before, at string
}

// drawRegion draws a frame, unless a question stands there or nothing has changed.
func (r *Renderer) drawRegion() {
	if r.suspended || r.closed {
		return
	}
	columns, rows := r.terminalSize()
	most := max(min(rows*2/5, maxRegionLines), 1)
	next := r.composeRegion(fitCells(columns), most)
	above := r.rowsAbove(columns)
	for _, p := range r.pending {
		above += len(p.lines)
	}
	if extraRows(next.lines, narrowColumns) > min(above, rows-len(next.lines)) {
		next = r.composeRegion(fitCells(min(columns, narrowColumns)), most)
	}
	if len(r.pending) == 0 && columns == r.columns && r.region.equalsRegion(next) {
		return
	}
	r.replaceRegion(next)
}

// fitCells returns the width of a region on a screen of so many columns.
func fitCells(columns int) int {
	for _, cells := range regionCells {
		if cells < columns {
			return cells
		}
	}
	return columns - 1
}

// extraRows returns how many rows more than their number lines take.
func extraRows(lines []string, columns int) int {
	extra := -len(lines)
	for _, l := range lines {
		extra += rowsOf(l, columns)
	}
	return extra
}

// rowsAbove returns how many rows are at least above the region, on a screen that now has so
// many columns.
func (r *Renderer) rowsAbove(columns int) int {
	if columns == r.columns {
		return r.above
	}
	return max(r.above-extraRows(r.region.lines, columns), 0)
}

// composeRegion returns the region of now, in at most so many lines and cells.
func (r *Renderer) composeRegion(cells, most int) region {
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
	// A region that shows calls is drawn by itself, also while the terminal becomes another
	// size.
	next := region{lines: append(lines, footer.Lines...), parked: r.opts.Parked || len(lines) > 0}
	switch {
	case len(footer.Lines) == 0:
	case next.parked:
		paintCursor(footer, next.lines[len(lines):])
	default:
		next.cursor, next.before, next.at = footer.Row, footer.Before, footer.At
	}
	return next
}

// paintCursor draws the cursor of a footer in its lines, where the terminal's does not stand.
func paintCursor(f Footer, lines []string) {
	if rest, ok := strings.CutPrefix(lines[f.Row], f.Before+f.At); ok {
		lines[f.Row] = f.Before + "\x1b[7m" + f.At + "\x1b[0m" + rest
	}
}

// isSettled reports whether the region can be erased: its rows need not be counted, or the
// width of the terminal was the same for a while.
func (r *Renderer) isSettled() bool {
	columns, _ := r.terminalSize()
	if columns != r.width {
		r.width, r.changed = columns, r.opts.Now()
	}
	return r.region.parked || len(r.region.lines) == 0 || r.width == r.columns || r.opts.Now().Sub(r.changed) >= settleTime
}

func (g region) equalsRegion(o region) bool {
	return g.parked == o.parked && g.cursor == o.cursor && g.before == o.before && slices.Equal(g.lines, o.lines)
}

// replaceRegion commits what is pending and puts another region below it, in one write.
func (r *Renderer) replaceRegion(next region) {
	columns, rows := r.terminalSize()
	r.above = r.rowsAbove(columns)
	text := r.eraseSequence(columns)
	for _, p := range r.pending {
		if r.opts.Size != nil && !p.verbatim {
			p.lines = Wrap(p.lines, columns)
		}
		for _, l := range p.lines {
			text += l + "\n"
		}
	}
	r.above = max(min(r.above+strings.Count(text, "\n"), rows-len(next.lines)), 0)
	text += next.drawSequence()
	if hide := next.parked && r.opts.Footer != nil; hide != r.hidden {
		text += map[bool]string{true: "\x1b[?25l", false: "\x1b[?25h"}[hide]
		r.hidden = hide
	}
	r.pending, r.region, r.columns = nil, next, columns
	if text != "" && r.opts.Live {
		text = "\x1b[?2026h" + text + "\x1b[?2026l"
	}
	r.write(text)
}

// drawSequence returns what draws a region, and leaves the cursor where it belongs. Lines of a
// parked one are cut by a terminal that has become too narrow for them, so that each takes
// one row.
func (g region) drawSequence() string {
	if len(g.lines) == 0 {
		return ""
	}
	text := strings.Join(g.lines, "\n")
	if below := len(g.lines) - 1 - g.cursor; below > 0 {
		text += fmt.Sprintf("\x1b[%dA", below)
	}
	text += "\r" + g.before
	if g.parked {
		return "\x1b[?7l" + text + "\x1b[?7h"
	}
	return text
}

// eraseSequence returns what takes the region off: to the first cell of its first row, and
// clear to the end of the screen. The rows that it now stands on are counted, since
// the terminal may have broken its lines anew. The carriage return passes over what
// the terminal has echoed meanwhile, such as ^C.
func (r *Renderer) eraseSequence(columns int) string {
	if len(r.region.lines) == 0 {
		return ""
	}
	rows := 0
	if !r.region.parked {
		count := func(string) int { return 1 }
		if r.opts.Reflow {
			count = func(l string) int { return rowsOf(l, columns) }
		}
		rows = count(r.region.before+r.region.at) - 1
		for _, l := range r.region.lines[:r.region.cursor] {
			rows += count(l)
		}
	}
	up := ""
	if rows > 0 {
		up = fmt.Sprintf("\x1b[%dA", rows)
	}
	// Not from the first cell on: tmux takes that for clearing the screen when it is the
	// screen's first, and keeps what stood there in the scrollback.
	return "\r" + up + " \x1b[J\r"
}

func spinnerFrame(frame int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[frame%len(frames)])
}

// regionLines returns at most rows lines, of about so many cells, that show what is going
// on now: of the output of calls as much as there is room for.
func (v *view) regionLines(now time.Time, spinner string, cells, rows int) []string {
	var out []string
	if v.chat && !v.turn {
		return nil
	}
	for tail := tailLines; tail >= 0; tail-- {
		if out = v.regionWith(tail, now, spinner, cells); len(out) <= rows {
			return out
		}
	}
	return append(out[:rows-1], v.style.dim(fmt.Sprintf("  … and %d more", len(out)-rows+1)))
}

func (v *view) regionWith(tail int, now time.Time, spinner string, cells int) []string {
	head := func(what string, since time.Time) string {
		took := formatElapsed(now.Sub(since))
		return fmt.Sprintf("%s %s  %s", v.style.cyan(spinner), fitWidth(what, cells-len(took)-4), v.style.dim(took))
	}
	var out []string
	for _, c := range v.running {
		out = append(out, head(c.what, c.since))
		out = append(out, v.tailOf(c, tail)...)
	}
	if len(v.running) == 0 {
		what := "working"
		switch {
		case v.asking && len(v.answer.text) > 0:
			what = "answering"
		case v.asking:
			what = "thinking"
		case v.sandbox == "":
			what = "starting the sandbox"
		}
		out = append(out, head(what, v.since))
		if v.chat {
			return append(out, lastRows(v.redact(v.answer.openText()), cells, tail)...)
		}
		for _, l := range lastLines(v.text.text, tail) {
			out = append(out, "  "+l)
		}
	}
	return out
}
