package ui

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// screen is a terminal. It obeys the sequences that we use (SGR, cursor up, clear to
// the end, modes 7, 25, 2026, 2004 and 1004) and fails the test for others. The zero
// value has no size: nothing wraps or scrolls.
type screen struct {
	t *testing.T
	// onWrite is called with the written text. It may be nil.
	onWrite func(string)
	// columns and rows are the size; 0 means unlimited. reflow means that lines are
	// wrapped anew when columns changes.
	columns, rows int
	reflow        bool
	// keeps means that it keeps empty rows at its end when a smaller width wraps lines,
	// like tmux: as many rows go to the scrollback. total then counts the rows.
	keeps bool
	total int

	mu     sync.Mutex
	lines  []row // including the scrollback
	y, x   int   // the cursor's line and column
	writes int
	framed bool
	// cuts is set while lines don't wrap, hidden while the cursor is hidden.
	cuts, hidden bool
}

// row is one row of a screen. A cell has a character with its combining ones, or is
// empty after a wide one. A wrapped row continues in the next one.
type row struct {
	cells []string
	wraps bool
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onWrite != nil {
		defer s.onWrite(string(p))
	}
	s.writes++
	text := string(p)
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			end := strings.IndexFunc(rest, func(r rune) bool { return r >= 0x40 && r <= 0x7e })
			if end < 0 {
				s.t.Fatalf("unfinished sequence %q", text)
			}
			s.obey(rest[:end], rest[end])
			text = rest[end+1:]
			continue
		}
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == '\n':
			s.y, s.x = s.y+1, 0
			s.countRows()
		case r == '\r':
			s.x = 0
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError && n == 1:
			s.t.Errorf("raw control %q on the screen", text[:n])
		default:
			s.put(text[:n])
		}
		text = text[n:]
	}
	s.countRows()
	if s.framed || s.cuts {
		s.t.Errorf("a frame was not ended by its write: %q", p)
	}
	return len(p), nil
}

func (s *screen) obey(args string, final byte) {
	switch {
	case final == 'm':
	case final == 'A':
		n, err := strconv.Atoi(args)
		if err != nil || n > s.y {
			s.t.Errorf("cursor up %q from row %d", args, s.y)
			n = s.y
		}
		s.y = max(s.y-n, s.top())
	case final == 'J' && args == "":
		if s.y < len(s.lines) && s.x > 0 {
			l := &s.lines[s.y]
			l.cells, l.wraps = l.cells[:min(s.x, len(l.cells))], false
			s.lines = s.lines[:s.y+1]
		}
		s.lines = s.lines[:min(s.y+min(s.x, 1), len(s.lines))]
	case final == 'h' && args == "?2026", final == 'l' && args == "?2026":
		s.framed = final == 'h'
	case args == "?7" && (final == 'h' || final == 'l'):
		s.cuts = final == 'l'
	case args == "?25" && (final == 'h' || final == 'l'):
		s.hidden = final == 'l'
	case slices.Contains([]string{"?2004", "?1004"}, args) && (final == 'h' || final == 'l'):
	default:
		s.t.Errorf("sequence CSI %s %c", args, final)
	}
}

// top returns the first line that is not in the scrollback.
func (s *screen) top() int {
	if s.rows == 0 {
		return 0
	}
	if s.keeps {
		return s.total - s.rows
	}
	return max(0, max(len(s.lines), s.y+1)-s.rows)
}

func (s *screen) countRows() { s.total = max(s.total, len(s.lines), s.y+1, s.rows) }

func (s *screen) put(text string) {
	width := ansi.StringWidthWc(text)
	switch over := s.columns > 0 && s.x+width > s.columns; {
	case over && s.cuts:
		s.x = max(s.columns-width, 0)
	case over:
		s.line().wraps = true
		s.y, s.x = s.y+1, 0
	}
	l := s.line()
	if width == 0 {
		if s.x > 0 {
			l.cells[s.x-1] += text
		}
		return
	}
	for len(l.cells) < s.x+width {
		l.cells = append(l.cells, " ")
	}
	l.cells[s.x] = text
	for i := 1; i < width; i++ {
		l.cells[s.x+i] = ""
	}
	s.x += width
}

func (s *screen) line() *row {
	for len(s.lines) <= s.y {
		s.lines = append(s.lines, row{})
	}
	return &s.lines[s.y]
}

// echo writes a typed key to the screen, like a terminal.
func (s *screen) echo(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range strings.Lines(text) {
		s.put(strings.TrimSuffix(l, "\n"))
		if strings.HasSuffix(l, "\n") {
			s.y, s.x = s.y+1, 0
		}
	}
}

// resize changes the size of the screen. The cursor stays after the same text.
func (s *screen) resize(columns, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeps {
		if rows < s.rows { // rows below the cursor go first
			s.total = max(s.total-s.rows+rows, s.y+1)
			s.lines = s.lines[:min(len(s.lines), s.total)]
		} else {
			s.total += rows - s.rows
		}
	}
	old := s.lines
	y, x := s.y, s.x
	s.columns, s.rows = columns, rows
	if !s.reflow {
		for i := range old {
			old[i].cells = old[i].cells[:min(len(old[i].cells), columns)]
		}
		s.x = min(s.x, columns)
		return
	}
	s.lines, s.y, s.x = nil, 0, 0
	at := [2]int{-1, 0}
	for i := 0; i < max(len(old), y+1); i++ {
		var l row
		if i < len(old) {
			l = old[i]
		}
		for j, cell := range l.cells {
			if cell != "" {
				s.put(cell)
			}
			if i == y && j == x { // in this cell, though it may have begun a row
				at = [2]int{s.y, s.x - max(1, ansi.StringWidthWc(cell))}
			}
		}
		s.line()
		if i == y && x >= len(l.cells) {
			at = [2]int{s.y, s.x}
		}
		if !l.wraps {
			s.y, s.x = s.y+1, 0
		}
	}
	s.y, s.x = at[0], at[1]
	for len(s.lines) > s.y+1 && len(s.lines[len(s.lines)-1].cells) == 0 {
		s.lines = s.lines[:len(s.lines)-1]
	}
	if s.x == 0 && s.y == len(s.lines)-1 && len(s.lines[s.y].cells) == 0 {
		s.lines = s.lines[:s.y]
	}
	s.total = max(s.total+len(s.lines)-len(old), rows)
	if s.keeps && s.y < s.top() {
		s.y, s.x = s.top(), 0
	}
}

// String returns the text of the scrollback and the screen, with wrapped lines joined.
func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, l := range s.lines {
		text := strings.Join(l.cells, "")
		if !l.wraps {
			text = strings.TrimRight(text, " ") + "\n"
		}
		b.WriteString(text)
	}
	if text := strings.TrimRight(b.String(), "\n"); text != "" {
		return text + "\n"
	}
	return ""
}

// The screen is strict, and behaves like a terminal.
func TestScreen(t *testing.T) {
	for _, bad := range []string{"\x1b[2J", "\x1b[1;1H", "\x1b[?1049h", "\x1b[K", "\x07", "\b", "\x1b[1A", "\x1b[?2026h"} {
		control := &screen{t: &testing.T{}}
		if _, _ = control.Write([]byte(bad)); !control.t.Failed() {
			t.Errorf("%q is obeyed", bad)
		}
	}
	for _, reflow := range []bool{true, false} {
		s := &screen{t: t, columns: 10, rows: 3, reflow: reflow}
		_, _ = s.Write([]byte("0123456789abc\n漢字漢字漢字\nend\n"))
		if got := len(s.lines); got != 5 {
			t.Errorf("%d rows in %q", got, s)
		}
		s.resize(5, 3)
		want := map[bool]string{true: "0123456789abc\n漢字漢字漢字\nend\n", false: "01234abc\n漢字漢字\nend\n"}[reflow]
		if got := s.String(); !reflow && len(s.lines) != 5 || reflow && len(s.lines) != 7 {
			t.Errorf("reflow %t: %d rows, %q, want %q", reflow, len(s.lines), got, want)
		}
		top := s.top()
		if _, _ = s.Write([]byte("\x1b[" + strconv.Itoa(s.y) + "A\x1b[J")); s.y != top || len(s.lines) != top {
			t.Errorf("reflow %t: the cursor is in line %d of %d, the screen begins at %d", reflow, s.y, len(s.lines), top)
		}
	}
}
