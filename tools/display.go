package tools

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Display makes text from a model, a tool or a file safe for a terminal or a page.
// It escapes control characters and everything a person would not see ("\x1b",
// "\u202e"), including newlines and tabs, which [DisplayLines] keeps. hidden
// reports whether anything but newlines and tabs was escaped. A repeated escape is
// written once, with a count ("\u00a0{×5000}"). Backslashes are not doubled, so the
// result can't be parsed back.
func Display(s string) (safe string, hidden bool) {
	return displayText(s, func(r rune) bool { return !needsEscape(r) })
}

// DisplayLines is like [Display] but keeps newlines and tabs.
func DisplayLines(s string) (safe string, hidden bool) {
	return displayText(s, func(r rune) bool { return r == '\n' || r == '\t' || !needsEscape(r) })
}

// ModelLines is [DisplayLines] for a model. It also keeps spaces of any width,
// which French puts before a colon, and a joiner after a visible character, without
// which words and emoji change. Several joiners in a row can hide a message, so
// they are escaped.
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

// CopyText makes text safe for a clipboard. Pasted text is used rather than read,
// so it escapes only control characters, characters that reorder text, and those
// that can hide a message.
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

// displayText escapes invalid UTF-8 and every rune that is not plain.
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

// manyEscapes is the number of repetitions from which an escape is counted instead:
// thousands of them would push the rest out of sight.
const manyEscapes = 8

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

// needsEscape reports whether r is a control or format character (bidirectional
// controls, zero-width characters, tags), takes no space or looks like a space, or
// is private or unassigned.
func needsEscape(r rune) bool {
	switch {
	case r == ' ':
		return false
	case r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x2800, r == 0x3164, r == 0xffa0:
		return true // letters and marks that look blank
	case unicode.Is(unicode.Variation_Selector, r):
		return r != 0xfe0f // emoji presentation, which people do write
	case unicode.Is(unicode.Zs, r):
		return true // shells and people take them for spaces, or overlook them
	}
	return !unicode.IsGraphic(r)
}

// Elide shortens text of more than limit bytes to its two ends, with a count of
// what was left out between them.
func Elide(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := utf8text.Split(s, limit)
	omitted := s[len(head) : len(s)-len(tail)]
	return fmt.Sprintf("%s [… %d characters (%d bytes) not shown …] %s", head, utf8.RuneCountInString(omitted), len(omitted), tail)
}
