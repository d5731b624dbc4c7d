package boundary

import (
	"strings"
	"unicode"
)

// folded is a text in which all spellings of a word are equal: escapes are decoded,
// look-alike characters are lower-case ASCII, invisible ones are removed, and white
// space is one blank, or one newline if it contains any. For phrases, marks of emphasis
// and comment leaders at line starts are removed too.
type folded struct {
	text []byte
	// starts and ends are each byte's offsets in the original, if requested.
	starts, ends []uint32
	// decode divided the original into characters. controls reports that the original has
	// some that begin control sequences.
	decode   func(string) (rune, int)
	controls bool
	// joints are the ascending offsets in text at which invisible characters after a
	// letter were removed.
	joints []int
}

// originIn returns the place in text, the original, of a non-empty part of the folded
// text. It computes the offsets on first use, because few texts need them.
func (f *folded) originIn(text string, at span) span {
	if f.starts == nil {
		*f = foldText(text, true, f.decode, nil)
	}
	return span{int(f.starts[at.start]), int(f.ends[at.end-1])}
}

// isInvisible reports whether a character shows nothing, or only a mark on another one.
func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Cc, unicode.Mn, unicode.Me, unicode.Other_Default_Ignorable_Code_Point)
}

// joins reports whether an invisible character may stand for a blank. Marks, which
// belong to the letter before, may not.
func joins(r rune) bool {
	return !unicode.In(r, unicode.Mn, unicode.Me) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// brailleBlank shows nothing but has a character's width.
const brailleBlank = '\u2800'

func (f *folded) addJoint(r rune) {
	at := len(f.text)
	if at == 0 || f.text[at-1] < 'a' || f.text[at-1] > 'z' || !joins(r) {
		return
	}
	if n := len(f.joints); n == 0 || f.joints[n-1] != at {
		f.joints = append(f.joints, at)
	}
}

// leaderLength returns the length of what starts a line that continues a comment, a
// quotation or a list: at most three characters such as // or >, with the blanks before
// them. It is 0 for ###.
func leaderLength(line string) int {
	marks := strings.TrimLeft(line, " \t")
	rest := strings.TrimLeft(marks[:min(len(marks), 4)], "/#*>-;|%!")
	n := min(len(marks), 4) - len(rest)
	if n == 0 || rest == "" || rest[0] != ' ' && rest[0] != '\t' || marks[:n] == "###" {
		return 0
	}
	return len(line) - len(marks) + n
}

// foldText folds text, which must be shorter than 4 GiB. decode is decodeUnit,
// decodeChar, plainUnit or plainChar. keep reports whether to keep a character; nil keeps all.
func foldText(text string, offsets bool, decode func(string) (rune, int), keep func(rune) bool) folded {
	f := folded{text: make([]byte, 0, len(text)), decode: decode}
	if offsets {
		f.starts, f.ends = make([]uint32, 0, len(text)), make([]uint32, 0, len(text))
	}
	for i := 0; i < len(text); {
		r, n := decode(text[i:])
		switch {
		case ' ' < r && r < 0x7f && r != '*': // plain, like nearly all
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
			f.controls = f.controls || beginsControl(r)
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
