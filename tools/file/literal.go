package file

import (
	"bytes"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// maxLiterals bounds the literals that a pattern is searched by.
const maxLiterals = 8

// literal is text that a match holds.
type literal struct {
	text string
	// fold is set if text is ASCII and its case is ignored.
	fold bool
	// rare is the index of the byte of a folded text that is searched for first.
	rare int
}

// requiredLiterals returns texts of which every match of the expression holds
// at least one; none if there are no such texts.
func requiredLiterals(expr string) []literal {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	return literalsOf(re.Simplify())
}

func literalsOf(re *syntax.Regexp) []literal {
	switch re.Op {
	case syntax.OpLiteral:
		return literalOf(re)
	case syntax.OpCapture, syntax.OpPlus:
		return literalsOf(re.Sub[0])
	case syntax.OpConcat:
		var best []literal
		for _, sub := range re.Sub {
			l := literalsOf(sub)
			if n, m := shortestLiteral(l), shortestLiteral(best); n > m || n == m && len(l) < len(best) {
				best = l
			}
		}
		return best
	case syntax.OpAlternate:
		var all []literal
		for _, sub := range re.Sub {
			l := literalsOf(sub)
			if len(l) == 0 || len(all)+len(l) > maxLiterals {
				return nil
			}
			all = append(all, l...)
		}
		return all
	}
	return nil
}

// literalOf returns the text of a literal, or of a literal whose case doesn't
// count the longest part that holds ASCII alone and no letter that is the same
// as one beyond ASCII (k and the Kelvin sign, s and the long s).
func literalOf(re *syntax.Regexp) []literal {
	text := string(re.Rune)
	if strings.ContainsRune(text, utf8.RuneError) {
		return nil // it matches whatever is not UTF-8
	}
	if re.Flags&syntax.FoldCase == 0 {
		return []literal{{text: text}}
	}
	best := ""
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r >= 0x80 || strings.ContainsRune("kKsS", r) }) {
		if len(part) > len(best) {
			best = strings.ToLower(part)
		}
	}
	if best == "" {
		return nil
	}
	l := literal{text: best, fold: true}
	for i := range best {
		if frequency(best[i]) < frequency(best[l.rare]) {
			l.rare = i
		}
	}
	return []literal{l}
}

// frequency ranks bytes by how often they are in text.
func frequency(b byte) int { return strings.IndexByte("zqxjvwbgypmfuhdlcnoiarte ", b) }

func shortestLiteral(list []literal) int {
	if len(list) == 0 {
		return 0
	}
	n := len(list[0].text)
	for _, l := range list {
		n = min(n, len(l.text))
	}
	return n
}

// index returns where the literal is in data, or -1.
func (l *literal) index(data []byte) int {
	if !l.fold {
		return bytes.Index(data, []byte(l.text))
	}
	lower := l.text[l.rare]
	upper := lower
	if 'a' <= lower && lower <= 'z' {
		upper -= 'a' - 'A'
	}
	nextLower, nextUpper := -1, -1
	for at := l.rare; ; at++ {
		nextLower, nextUpper = indexFrom(data, lower, at, nextLower), indexFrom(data, upper, at, nextUpper)
		at = min(nextLower, nextUpper)
		begin := at - l.rare
		if begin+len(l.text) > len(data) {
			return -1
		}
		if equalFold(data[begin:begin+len(l.text)], l.text) {
			return begin
		}
	}
}

// indexFrom returns the index of the first b in data from at on, len(data)
// if there is none; known is a former result.
func indexFrom(data []byte, b byte, at, known int) int {
	if known >= at || at >= len(data) {
		return max(known, at)
	}
	i := bytes.IndexByte(data[at:], b)
	if i < 0 {
		return len(data)
	}
	return at + i
}

// equalFold compares data with an ASCII text of lower case.
func equalFold(data []byte, lower string) bool {
	for i, b := range data {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		if b != lower[i] {
			return false
		}
	}
	return true
}

// finder finds the next place in a text that may hold a match.
type finder struct {
	literals []literal
	next     [maxLiterals]int
}

// nextCandidate returns the first index from at on at which one of the literals
// is in data, or -1. For the same data it is called with rising indexes, the
// first of which is 0.
func (f *finder) nextCandidate(data []byte, at int) int {
	first := -1
	for i := range f.literals {
		if at == 0 || f.next[i] >= 0 && f.next[i] < at {
			f.next[i] = f.literals[i].index(data[at:])
			if f.next[i] >= 0 {
				f.next[i] += at
			}
		}
		if n := f.next[i]; n >= 0 && (first < 0 || n < first) {
			first = n
		}
	}
	return first
}
