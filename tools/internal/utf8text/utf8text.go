// Package utf8text repairs and shortens text without splitting characters.
package utf8text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Repair returns s as valid UTF-8. It writes NUL, which some providers and parsers
// refuse, as its picture. Other control characters stay.
func Repair(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	return strings.ReplaceAll(s, "\x00", "␀")
}

// emojiStyle is the variation selector that shows a character as an emoji.
const emojiStyle = '\ufe0f'

// IsJoiner reports whether r is the zero-width joiner or non-joiner, or the
// variation selector of emoji. They occur in words and emoji, but many of them can
// hide a message.
func IsJoiner(r rune) bool { return r == '\u200c' || r == '\u200d' || r == emojiStyle }

// MayJoin reports whether a joiner may follow the character before: one may follow
// each visible character, and another one the variation selector.
func MayJoin(before, r rune) bool {
	return !unicode.IsSpace(before) && (!IsJoiner(before) || before == emojiStyle && r != emojiStyle)
}

// Clip returns at most the first n bytes of s, whole runes and "…" at the end if
// anything was cut.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n = max(n-len("…"), 0)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// ClipMiddle returns at most limit bytes of one line and keeps both ends: a
// command's end matters as much as its beginning.
func ClipMiddle(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := Split(s, limit-len("…"))
	return head + "…" + tail
}

// Bound returns the two ends of s, at most limit bytes together, and reports
// whether it cut anything. A note between them says how many bytes were left out.
// It is not counted.
func Bound(s string, limit int) (bounded string, cut bool) {
	if len(s) <= limit {
		return s, false
	}
	head, tail := Split(s, limit)
	omitted := len(s) - len(head) - len(tail)
	return fmt.Sprintf("%s\n[… %d of %d bytes left out …]\n%s", head, omitted, len(s), tail), true
}

// Split returns the first and last bytes of s, at most limit together, in whole
// runes. s must be longer than limit.
func Split(s string, limit int) (head, tail string) {
	h := limit / 2
	for h > 0 && !utf8.RuneStart(s[h]) {
		h--
	}
	t := len(s) - (limit - limit/2)
	for t < len(s) && !utf8.RuneStart(s[t]) {
		t++
	}
	return s[:h], s[t:]
}

// SplitChars returns the first and last characters of s, at most limit together. If
// s is no longer, head is s.
func SplitChars(s string, limit int) (head, tail string) {
	if utf8.RuneCountInString(s) <= limit {
		return s, ""
	}
	h, t := 0, len(s)
	for range limit / 2 {
		_, size := utf8.DecodeRuneInString(s[h:])
		h += size
	}
	for range limit - limit/2 {
		_, size := utf8.DecodeLastRuneInString(s[:t])
		t -= size
	}
	return s[:h], s[t:]
}
