package boundary

import (
	"strings"
	"unicode"
)

// folded is a text in which spellings of the same words are equal: escapes are decoded,
// look-alike characters are lower-case ASCII, invisible ones are left out, and white
// space is one blank, or one newline if it has any. For phrases, marks of emphasis and what
// begins the lines of a comment are left out too.
type folded struct {
	text []byte
	// starts and ends are the offsets in the original of each byte of text, if they were
	// asked for.
	starts, ends []uint32
	// joints are the offsets in text, in their order, at which invisible characters behind
	// a letter were left out.
	joints []int
}

// originIn returns the place of a part of the folded text, which is not empty, in text,
// from which it was folded whole. The offsets are made for the first part: few texts have one.
func (f *folded) originIn(text string, at span) span {
	if f.starts == nil {
		*f = foldText(text, true, nil)
	}
	return span{int(f.starts[at.start]), int(f.ends[at.end-1])}
}

// isInvisible reports whether a character shows nothing, or only a mark on another one.
func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Cc, unicode.Mn, unicode.Me, unicode.Other_Default_Ignorable_Code_Point)
}

// joins reports whether a character that shows nothing may stand for a blank: marks, which
// belong to the letter before, may not.
func joins(r rune) bool {
	return !unicode.In(r, unicode.Mn, unicode.Me) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// brailleBlank shows nothing, with the width of a character.
const brailleBlank = '\u2800'

// addJoint notes that an invisible character was left out.
func (f *folded) addJoint(r rune) {
	at := len(f.text)
	if at == 0 || f.text[at-1] < 'a' || f.text[at-1] > 'z' || !joins(r) {
		return
	}
	if n := len(f.joints); n == 0 || f.joints[n-1] != at {
		f.joints = append(f.joints, at)
	}
}

// leaderLength returns the length of what begins a line that continues a comment, a quotation
// or a list: at most three characters such as // or > with the blanks before them. Three
// number signs begin no such line.
func leaderLength(line string) int {
	marks := strings.TrimLeft(line, " \t")
	rest := strings.TrimLeft(marks[:min(len(marks), 4)], "/#*>-;|%!")
	n := min(len(marks), 4) - len(rest)
	if n == 0 || rest == "" || rest[0] != ' ' && rest[0] != '\t' || marks[:n] == "###" {
		return 0
	}
	return len(line) - len(marks) + n
}

// foldText folds text, of less than 4 GiB, with the offsets of its parts if they are asked
// for. keep reports whether a character is part of the result; nil keeps all.
func foldText(text string, offsets bool, keep func(rune) bool) folded {
	f := folded{text: make([]byte, 0, len(text))}
	if offsets {
		f.starts, f.ends = make([]uint32, 0, len(text)), make([]uint32, 0, len(text))
	}
	for i := 0; i < len(text); {
		r, n := decodeUnit(text[i:])
		switch {
		case ' ' < r && r < 0x7f && r != '*': // plain, as nearly all are
		case r == '\n' || r == '\r' || r == '\u2028' || r == '\u2029':
			r = '\n'
			if keep == nil {
				n += leaderLength(text[i+n:])
			}
		case r == '*' && keep == nil: // emphasis
			r = -1
		case r == brailleBlank || unicode.IsSpace(r):
			r = ' '
		case isInvisible(r):
			f.addJoint(r)
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
			f.text = append(f.text, byte(r))
			if offsets {
				f.starts, f.ends = append(f.starts, uint32(i)), append(f.ends, uint32(i+n))
			}
		}
		i += n
	}
	return f
}
