package boundary

import "unicode"

// folded is a text in which spellings of the same words are equal: escapes are decoded,
// look-alike characters are lower-case ASCII, invisible ones are left out, and white
// space is one blank, or one newline if it has any.
type folded struct {
	text []byte
	// starts and ends are the offsets in the original of each byte of text.
	starts, ends []int
}

// foldText folds text. keep reports whether a character is part of the result; nil keeps
// all.
func foldText(text string, keep func(rune) bool) folded {
	f := folded{text: make([]byte, 0, len(text)), starts: make([]int, 0, len(text)), ends: make([]int, 0, len(text))}
	for i := 0; i < len(text); {
		r, n := decodeUnit(text[i:])
		switch {
		case ' ' < r && r < 0x7f: // plain, as nearly all are
		case r == '\n' || r == '\r' || r == '\u2028' || r == '\u2029':
			r = '\n'
		case unicode.IsSpace(r):
			r = ' '
		case unicode.In(r, unicode.Cf, unicode.Cc, unicode.Mn, unicode.Me):
			r = -1
		case r > unicode.MaxASCII:
			r = '?' // matches nothing
		}
		last := len(f.text) - 1
		if (r == ' ' || r == '\n') && last >= 0 && (f.text[last] == ' ' || f.text[last] == '\n') {
			f.text[last] = min(f.text[last], byte(r)) // "\n" is less than " "
			r = -1
		}
		if r >= 0 && (keep == nil || keep(r)) {
			f.text, f.starts, f.ends = append(f.text, byte(r)), append(f.starts, i), append(f.ends, i+n)
		}
		i += n
	}
	return f
}
