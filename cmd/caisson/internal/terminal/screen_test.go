package terminal

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// screen is what a terminal would show: it obeys the sequences that we use
// (SGR, cursor up, clear to the end) and fails the test for any other one.
type screen struct {
	t *testing.T
	// onWrite, where it is set, is told what was written.
	onWrite func(string)

	mu    sync.Mutex
	lines []string
	row   int
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onWrite != nil {
		defer s.onWrite(string(p))
	}
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
			s.row++
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError && n == 1:
			s.t.Errorf("raw control %q on the screen", text[:n])
		default:
			s.put(text[:n])
		}
		text = text[n:]
	}
	return len(p), nil
}

func (s *screen) obey(args string, final byte) {
	switch final {
	case 'm':
	case 'A':
		n, err := strconv.Atoi(args)
		if err != nil || n > s.row {
			s.t.Errorf("cursor up %q from row %d", args, s.row)
		}
		s.row -= n
	case 'J':
		s.lines = s.lines[:min(s.row, len(s.lines))]
	default:
		s.t.Errorf("sequence CSI %s %c", args, final)
	}
}

func (s *screen) put(text string) {
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, "")
	}
	s.lines[s.row] += text
}

// String is what is on the screen, a line a row.
func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, l := range s.lines {
		fmt.Fprintln(&b, l)
	}
	return b.String()
}
