package tools

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Display makes text from a model, a tool or a file safe for a terminal or a
// page: what would be executed by a terminal or not be seen by a person is
// written out as an escape ("\x1b", "\u202e"), and hidden reports whether there was
// any. Newlines and tabs are escaped too; [DisplayLines] keeps them. An escape
// that is repeated is written once, with a count ("\u00a0{×5000}"). What is
// printable is left alone; a backslash is not doubled, so the result is for
// people and can't be parsed back.
func Display(s string) (safe string, hidden bool) {
	return displayText(s, func(r rune) bool { return !needsEscape(r) })
}

// DisplayLines is [Display] for text of several lines: "\n" and "\t" stay, and
// don't count as hidden.
func DisplayLines(s string) (safe string, hidden bool) {
	return displayText(s, func(r rune) bool { return r == '\n' || r == '\t' || !needsEscape(r) })
}

// ModelLines is [DisplayLines] for text that a model reads. It keeps blanks of any width,
// which French puts before a colon, and one joiner behind a visible character: without it,
// words and emoji change. Several in a row can hide a message.
func ModelLines(s string) string {
	last := ' '
	safe, _ := displayText(s, func(r rune) bool {
		before := last
		last = r
		if utf8text.IsJoiner(r) {
			return utf8text.MayJoin(before, r)
		}
		return r == '\n' || r == '\t' || unicode.Is(unicode.Zs, r) || !needsEscape(r)
	})
	return safe
}

// CopyText makes text of several lines safe for a clipboard. It is used as it is there, not
// looked at, so only what a terminal would obey, what reorders text, and what can hide a
// message in it become escapes.
func CopyText(s string) (safe string, hidden bool) {
	lines := strings.Split(s, "\r\n")
	for i, line := range lines {
		var found bool
		lines[i], found = displayText(line, func(r rune) bool {
			reorders := r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x206f
			hides := r >= 0xe0000 && r <= 0xe0fff // tags and variation selectors
			return r == '\n' || r == '\t' || !unicode.IsControl(r) && !reorders && !hides
		})
		hidden = hidden || found
	}
	return strings.Join(lines, "\r\n"), hidden
}

// displayText writes the runes that are not plain, and bytes that are no UTF-8, as escapes.
func displayText(s string, plain func(rune) bool) (string, bool) {
	hidden := false
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if (r != utf8.RuneError || size > 1) && plain(r) {
			b.WriteString(s[i : i+size])
			i += size
			continue
		}
		hidden = hidden || (r != '\n' && r != '\t')
		raw := s[i : i+size]
		writeEscape(&b, r, raw)
		i += size
		if n := countRepeats(s[i:], raw); n >= manyEscapes && r != '\n' && r != '\t' {
			fmt.Fprintf(&b, "{×%d}", n+1)
			i += n * size
		}
	}
	return b.String(), hidden
}

// manyEscapes is the number of repetitions from which an escape is written once,
// with a count: thousands of them would push the rest out of sight.
const manyEscapes = 8

// countRepeats returns how many times s begins with part.
func countRepeats(s, part string) int {
	n := 0
	for strings.HasPrefix(s[n*len(part):], part) {
		n++
	}
	return n
}

func writeEscape(b *strings.Builder, r rune, raw string) {
	switch {
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// needsEscape reports whether a rune is written as an escape: controls (C0, DEL, C1); format
// characters, which hold bidirectional controls, zero-width characters and
// tags; line and paragraph separators; variation selectors and other
// characters that take no space or look like one; private use, surrogates and
// unassigned.
func needsEscape(r rune) bool {
	switch {
	case r == ' ':
		return false
	case r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x2800, r == 0x3164, r == 0xffa0:
		return true // look like nothing, though they are letters or marks
	case unicode.Is(unicode.Variation_Selector, r):
		return r != 0xfe0f // emoji presentation, as people really write it
	case unicode.Is(unicode.Zs, r):
		return true // shells and people take them for spaces, or for nothing
	}
	return !unicode.IsGraphic(r)
}

// Elide returns text of at most limit bytes whole, and otherwise its two ends
// with a count of what is left out between them.
func Elide(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := utf8text.Split(s, limit)
	omitted := s[len(head) : len(s)-len(tail)]
	return fmt.Sprintf("%s [… %d characters (%d bytes) not shown …] %s", head, utf8.RuneCountInString(omitted), len(omitted), tail)
}
