package ci

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// scanner finds the beginnings of commands, across writes. It holds nothing back: it
// escapes the last byte of a complete marker.
//
// GitHub's runner obeys "::" after blanks at the beginning of a line, and "##["
// anywhere. Azure's obeys "##vso[" anywhere, and warns about "##vso". TeamCity's obeys
// "##teamcity[". Lines end with CR, LF or both.
type scanner struct {
	// blank is set while the line has only blanks, inLine once it has a byte.
	blank, inLine bool
	// partial has the first bytes of a character.
	partial []byte
	// colon is set after a colon that may begin a marker. hashes counts successive "#",
	// at most 2. word has the bytes after them.
	colon  bool
	hashes int
	word   string
	// wrote is set after the first byte.
	wrote bool
}

// markers are the words after "##", up to the byte that is escaped.
var markers = []string{"[", "vso", "teamcity"}

func (s *scanner) reset() { *s = scanner{blank: true} }

// startLine begins a new line.
func (s *scanner) startLine() { *s = scanner{blank: true, wrote: true} }

func (s *scanner) atLineStart() bool { return !s.inLine }

// escapeText returns text with its markers escaped, and their number. In JSON each "::"
// and "##" is a marker: there the escape has the same meaning.
func (s *scanner) escapeText(text []byte, json bool) ([]byte, int) {
	var out []byte // nil while nothing is changed
	n, done := 0, 0
	for i, c := range text {
		if with := s.escapeByte(c, json); with != "" {
			out = append(append(out, text[done:i]...), with...)
			done = i + 1
			n++
		}
	}
	if n == 0 {
		return text, 0
	}
	return append(out, text[done:]...), n
}

// escapeByte takes one byte and returns its replacement, or "" if it stays.
func (s *scanner) escapeByte(c byte, json bool) string {
	first := !s.wrote
	s.wrote = true
	if c == '\n' || c == '\r' {
		s.startLine()
		return ""
	}
	s.inLine = true
	if first && (c == 0x00 || c >= 0xfe) { // it would make the rest UTF-16 or UTF-32
		return string(unicode.ReplacementChar)
	}
	colon, hash := s.nextColon(c, json), s.nextHash(c, json)
	if colon || hash {
		return fmt.Sprintf(`\u%04x`, c)
	}
	return ""
}

// nextColon reports whether c completes a "::" that runners obey.
func (s *scanner) nextColon(c byte, json bool) bool {
	if c == ':' && s.colon {
		s.colon = false
		return true
	}
	s.colon = c == ':' && (s.blank || json)
	s.blank = s.blank && s.isBlank(c)
	return false
}

// isBlank reports whether c is, or belongs to, a character that runners skip at the
// beginning of a line. Invisible characters count too: some comparisons ignore them.
func (s *scanner) isBlank(c byte) bool {
	if c < utf8.RuneSelf {
		s.partial = nil
		return c <= ' ' || c == 0x7f
	}
	s.partial = append(s.partial, c)
	if !utf8.FullRune(s.partial) {
		return true
	}
	r, _ := utf8.DecodeRune(s.partial)
	s.partial = nil
	return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError
}

// nextHash reports whether c completes a marker that begins with "##".
func (s *scanner) nextHash(c byte, json bool) bool {
	switch {
	case c == '#' && json && s.hashes > 0:
		s.hashes = 0
		return true
	case c == '#':
		s.hashes, s.word = min(s.hashes+1, 2), ""
		return false
	case s.hashes < 2:
		s.hashes = 0
		return false
	}
	s.word += strings.ToLower(string(rune(c)))
	if slices.Contains(markers, s.word) {
		s.hashes, s.word = 0, ""
		return true
	}
	if !slices.ContainsFunc(markers, func(m string) bool { return strings.HasPrefix(m, s.word) }) {
		s.hashes, s.word = 0, ""
	}
	return false
}
