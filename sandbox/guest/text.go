package guest

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText bounds a message of the guest's that becomes part of an error.
const maxText = 500

// cleanText makes a message of the guest fit for an error and a terminal: one
// line, no control or invisible characters, bounded.
func cleanText(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
