package mcp

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// oneLine returns text of a server for people: one line of at most limit bytes, with
// what can't be seen escaped.
func oneLine(s string, limit int) string {
	safe, _ := tools.Display(utf8text.Clip(strings.ToValidUTF8(s, "\ufffd"), limit))
	return safe
}

// lastLines is [oneLine] for text of several lines, of which the end is kept.
func lastLines(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) > limit {
		s = s[len(s)-limit:]
		for len(s) > 0 && !utf8.RuneStart(s[0]) {
			s = s[1:]
		}
	}
	safe, _ := tools.DisplayLines(s)
	return safe
}

// cleanText returns text of a definition without the characters that people don't see
// and models read: controls, bidirectional controls, tags and other format characters,
// private use. It is cut after limit bytes. A note tells the model of both.
func cleanText(s string, limit int) string {
	hidden := 0
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || isHidden(r):
			if r != '\r' {
				hidden++
			}
			return -1
		case unicode.In(r, unicode.Zs, unicode.Zl, unicode.Zp):
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	clean, _ = utf8text.Bound(clean, limit)
	if hidden > 0 {
		clean += fmt.Sprintf("\n[%d hidden characters removed]", hidden)
	}
	return clean
}

// isHidden reports whether a character takes no space, or is none.
func isHidden(r rune) bool {
	switch r {
	case ' ', '\n', '\t', '\r':
		return false
	case 0x034f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xffa0:
		return true // look like nothing, though they are letters or marks
	}
	return unicode.In(r, unicode.C) || unicode.Is(unicode.Variation_Selector, r) && r != 0xfe0f
}
