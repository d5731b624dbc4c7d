package tools

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Display makes text from a model, a tool or a file safe for a terminal or a
// page: what would be executed by a terminal or not be seen by a person is
// written out as an escape ("\x1b", "\u202e"), and hidden says that there was
// any. Newlines and tabs are escaped too; [DisplayLines] keeps them. What is
// printable is left alone; a backslash is not doubled, so the result is for
// people and can't be parsed back.
func Display(s string) (safe string, hidden bool) { return display(s, false) }

// DisplayLines is [Display] for text of several lines: "\n" and "\t" stay, and
// don't count as hidden.
func DisplayLines(s string) (safe string, hidden bool) { return display(s, true) }

func display(s string, lines bool) (string, bool) {
	plain := func(r rune, size int) bool {
		if r == utf8.RuneError && size == 1 {
			return false
		}
		return lines && (r == '\n' || r == '\t') || !escaped(r)
	}
	hidden := false
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if plain(r, size) {
			b.WriteString(s[i : i+size])
			i += size
			continue
		}
		hidden = hidden || (r != '\n' && r != '\t')
		writeEscape(&b, r, s[i:i+size])
		i += size
	}
	return b.String(), hidden
}

func writeEscape(b *strings.Builder, r rune, raw string) {
	switch {
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case r == utf8.RuneError && len(raw) == 1, r < 0x80:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// escaped says which runes are written out: controls (C0, DEL, C1); format
// characters, which hold bidirectional controls, zero-width characters and
// tags; line and paragraph separators; variation selectors and other
// characters that take no space or look like one; private use, surrogates and
// unassigned.
func escaped(r rune) bool {
	switch {
	case r == ' ':
		return false
	case r == 0x034f, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x2800, r == 0x3164, r == 0xffa0:
		return true // look like nothing, though they are letters or marks
	case unicode.Is(unicode.Variation_Selector, r):
		return r != 0xfe0f // emoji presentation, as people really write it
	case unicode.Is(unicode.Zs, r):
		return r != 0x00a0 && r != 0x3000
	}
	return !unicode.IsGraphic(r)
}
