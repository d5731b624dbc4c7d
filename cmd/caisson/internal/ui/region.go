package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxRegionLines bounds the live region, so that it still fits on a screen that has
// become much narrower: lines in a terminal's scrollback can't be erased.
const maxRegionLines = 8

// regionCells are the widths of a live region. The widest that fits is used. They are
// few, so that a screen that slowly becomes narrower rarely breaks the lines.
var regionCells = []int{79, 59, narrowColumns - 1}

// narrowColumns is the width of the narrowest screen that leaves no row of a region
// behind.
const narrowColumns = 40

// settleTime is how long a terminal's width must be stable before rows are counted:
// tmux reports a change up to 250 ms late.
const settleTime = 500 * time.Millisecond

type region struct {
	lines []string
	// parked is set if the cursor rests in the first cell. The region can then be
	// erased without counting rows, whatever the width has become.
	parked bool
	// Otherwise cursor is the cursor's line, before its text before the cursor, and at
	// the character under it.
	cursor     int
	before, at string
}

// drawRegion draws a frame, unless a question is shown or nothing has changed.
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

// fitCells returns the width of a region on a screen with this number of columns.
func fitCells(columns int) int {
	for _, cells := range regionCells {
		if cells < columns {
			return cells
		}
	}
	return columns - 1
}

// extraRows returns the number of rows that lines take beyond one each.
func extraRows(lines []string, columns int) int {
	extra := -len(lines)
	for _, l := range lines {
		extra += rowsOf(l, columns)
	}
	return extra
}

// rowsAbove returns the least number of rows above the region, now that the screen has
// this number of columns.
func (r *Renderer) rowsAbove(columns int) int {
	if columns == r.columns {
		return r.above
	}
	return max(r.above-extraRows(r.region.lines, columns), 0)
}

// composeRegion returns the current region, within these limits.
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
	// A region that shows calls is redrawn by the clock, also while the terminal's size
	// changes.
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

// paintCursor draws a footer's cursor in its lines, because the terminal's is
// elsewhere.
func paintCursor(f Footer, lines []string) {
	if rest, ok := strings.CutPrefix(lines[f.Row], f.Before+f.At); ok {
		lines[f.Row] = f.Before + "\x1b[7m" + f.At + "\x1b[0m" + rest
	}
}

// isSettled reports whether the region can be erased: its rows need not be counted, or
// the terminal's width was stable for a while.
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

// replaceRegion commits pending lines and draws another region below them, in one
// write.
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

// drawSequence returns the sequence that draws a region and positions the cursor. In a
// parked region, a terminal that is too narrow cuts lines, so that each takes one row.
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

// eraseSequence returns the sequence that moves to the region's first cell and clears
// the rest of the screen. It counts the rows that the region now takes, since the
// terminal may have rewrapped its lines. The carriage return overwrites echoed text
// such as ^C.
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
	// Don't clear from the first cell: at the screen's first cell, tmux takes that for
	// clearing the screen and keeps the content in the scrollback.
	return "\r" + up + " \x1b[J\r"
}

func spinnerFrame(frame int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[frame%len(frames)])
}

// regionLines returns at most rows lines, of about cells columns, that show the current
// activity, with as much output of calls as fits.
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
