package loop

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// escapedOpener replaces the "<" of a tag that must not be read as one. It is
// plain text under every decoding, which "&lt;" is not.
const escapedOpener = "[lt]"

// escapeBoundary takes the opening angle bracket away from everything in text
// that a generous reader could take for a tag of our wrapper: any case, wide
// or look-alike brackets and letters, invisible characters anywhere, other
// separators, HTML entities, percent and backslash escapes. All other text
// stays byte for byte.
func escapeBoundary(text string) string {
	var out strings.Builder
	done := 0
	for i := 0; i < len(text); {
		// Most of a text is plain letters, which need no decoding.
		if c := text[i]; c < utf8.RuneSelf && c != '<' && c != '&' && c != '\\' && c != '%' {
			i++
			continue
		}
		r, n := decodeUnit(text[i:])
		if r == '<' && isTagName(text[i+n:]) {
			out.WriteString(text[done:i])
			out.WriteString(escapedOpener)
			done = i + n
		}
		i += n
	}
	if done == 0 {
		return text
	}
	out.WriteString(text[done:])
	return out.String()
}

// isTagName says that the rest of a text, right after an opening bracket,
// starts with our tag's name. Anything but letters, digits and brackets may
// stand before and between its letters, however much: the next bracket ends
// the search, so that all searches together read a text once.
func isTagName(rest string) bool {
	name := boundaryLetters
	for name != "" && rest != "" {
		r, n := decodeUnit(rest)
		switch {
		case r == rune(name[0]):
			name = name[1:]
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '<' || r == '>':
			return false
		}
		rest = rest[n:]
	}
	return name == ""
}

// decodeUnit reads one character, however it is spelled, and folds it to the
// plain ASCII letter or bracket that it looks like. n is how many bytes of s
// it takes, at least one. Characters without a fold come back as they are.
func decodeUnit(s string) (r rune, n int) {
	switch s[0] {
	case '&':
		r, n = decodeEntity(s)
	case '\\':
		r, n = decodeBackslash(s)
	case '%':
		r, n = decodeHex(s, 1, 2)
	}
	if n == 0 {
		r, n = utf8.DecodeRuneInString(s)
	}
	return fold(r), n
}

// decodeEntity reads an HTML entity that is a bracket, a slash or ASCII by
// number, with or without its semicolon, and with any number of "amp;" before.
func decodeEntity(s string) (rune, int) {
	at := 1
	for len(s)-at >= 4 && strings.EqualFold(s[at:at+4], "amp;") {
		at += 4
	}
	rest := s[at:]
	if len(rest) >= 2 && strings.EqualFold(rest[:2], "lt") {
		return '<', at + 2 + semicolon(rest[2:])
	}
	if len(rest) >= 2 && strings.EqualFold(rest[:2], "gt") {
		return '>', at + 2 + semicolon(rest[2:])
	}
	if len(rest) < 2 || rest[0] != '#' {
		return 0, 0
	}
	base, at := rune(10), at+1
	if rest[1] == 'x' || rest[1] == 'X' {
		base, at = 16, at+1
	}
	v, end := rune(0), at
	for end < len(s) && end < at+16 && digit(s[end], base) >= 0 {
		v = min(v*base+digit(s[end], base), unicode.MaxRune)
		end++
	}
	if end == at {
		return 0, 0
	}
	return v, end + semicolon(s[end:])
}

// maxBackslashes bounds how often an escape may be escaped itself.
const maxBackslashes = 16

// decodeBackslash reads \x3c, \u003c, \u{3c}, \U0000003c and \74, with up to
// [maxBackslashes] before them.
func decodeBackslash(s string) (rune, int) {
	at := 1
	for at < min(len(s), maxBackslashes) && s[at] == '\\' {
		at++
	}
	if at == len(s) {
		return 0, 0
	}
	switch {
	case s[at] == 'x' || s[at] == 'X':
		return decodeHex(s, at+1, 2)
	case s[at]|0x20 == 'u' && at+1 < len(s) && s[at+1] == '{':
		end := strings.IndexByte(s[at:min(at+12, len(s))], '}')
		if end <= 2 {
			return 0, 0
		}
		v, n := decodeNumber(s, at+2, end-2, 16)
		if n == 0 {
			return 0, 0
		}
		return v, n + 1
	case s[at] == 'u' || s[at] == 'U':
		if r, n := decodeHex(s, at+1, 8); n > 0 && r < unicode.MaxASCII {
			return r, n
		}
		return decodeHex(s, at+1, 4)
	case s[at] >= '0' && s[at] <= '1' && len(s) >= at+3:
		return decodeNumber(s, at, 3, 8)
	case s[at] >= '4' && s[at] <= '7' && len(s) >= at+2:
		return decodeNumber(s, at, 2, 8)
	}
	return 0, 0
}

// decodeHex reads exactly n hexadecimal digits at an offset.
func decodeHex(s string, at, n int) (rune, int) { return decodeNumber(s, at, n, 16) }

// decodeNumber reads exactly n digits at an offset; the unit takes all of s up
// to their end, or nothing.
func decodeNumber(s string, at, n int, base rune) (rune, int) {
	if len(s) < at+n {
		return 0, 0
	}
	v := rune(0)
	for _, b := range []byte(s[at : at+n]) {
		d := digit(b, base)
		if d < 0 {
			return 0, 0
		}
		v = min(v*base+d, unicode.MaxRune)
	}
	return v, at + n
}

// semicolon is 1 where s starts with one.
func semicolon(s string) int {
	if strings.HasPrefix(s, ";") {
		return 1
	}
	return 0
}

// digit is the value of a digit in base 8, 10 or 16, or -1.
func digit(b byte, base rune) rune {
	v := rune(-1)
	switch {
	case '0' <= b && b <= '9':
		v = rune(b - '0')
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		v = rune(b|0x20-'a') + 10
	}
	if v >= base {
		return -1
	}
	return v
}

// fold maps a character to the plain one that it passes for.
func fold(r rune) rune {
	if r < utf8.RuneSelf {
		if 'A' <= r && r <= 'Z' {
			return r | 0x20
		}
		return r
	}
	switch {
	case '！' <= r && r <= '～': // full width
		return fold(r - '！' + '!')
	case 0xE0020 <= r && r <= 0xE007E: // tag characters
		return fold(r - 0xE0000)
	case 0x1D400 <= r && r <= 0x1D6A3: // 13 mathematical alphabets of 52 letters
		return 'a' + (r-0x1D400)%26
	case 'Ⓐ' <= r && r <= 'Ⓩ':
		return 'a' + r - 'Ⓐ'
	case 'ⓐ' <= r && r <= 'ⓩ':
		return 'a' + r - 'ⓐ'
	}
	return lookalike(r)
}

// lookalike maps brackets, and the letters of our tag's name, from other
// scripts and with marks; everything else stays.
func lookalike(r rune) rune {
	switch r {
	case '﹤', '‹', '\u2329', '〈', '⟨', '˂', 'ᐸ', '❮', '❰', '≺', '⧼', '《', '«':
		return '<'
	case '﹥', '›', '\u232a', '〉', '⟩', '˃', 'ᐳ', '❯', '❱', '≻', '⧽', '》', '»':
		return '>'
	case 'а', 'А', 'ɑ', 'α', 'Α', 'à', 'á', 'â', 'ã', 'ä', 'å', 'ā':
		return 'a'
	case 'с', 'С', 'ϲ', 'ⅽ', 'ç', 'ć', 'č':
		return 'c'
	case 'і', 'І', 'ı', 'ι', 'Ι', 'ⅰ', 'ì', 'í', 'î', 'ï', 'ĩ', 'ī', 'İ':
		return 'i'
	case 'ո', 'η', 'ń', 'ñ', 'ň', 'Ν':
		return 'n'
	case 'о', 'О', 'ο', 'Ο', 'օ', 'ò', 'ó', 'ô', 'õ', 'ö', 'ø', 'ō':
		return 'o'
	case 'р', 'Р', 'ρ', 'Ρ':
		return 'p'
	case 'ѕ', 'Ѕ', 'ś', 'š', 'ş', 'ſ':
		return 's'
	case 'т', 'Т', 'τ', 'Τ', 'ť', 'ţ':
		return 't'
	case 'υ', 'ս', 'ù', 'ú', 'û', 'ü', 'ū':
		return 'u'
	}
	return r
}
