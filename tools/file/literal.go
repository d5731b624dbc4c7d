package file

import (
	"bytes"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

const maxLiterals = 8

// literal is a text that matches contain.
type literal struct {
	text string
	// fold is set if case is ignored; text is then lower-case ASCII.
	fold bool
	// rare is the index of the byte of a folded text to search for first.
	rare int
}

// requiredLiterals returns texts of which every match of expr contains at least
// one, or none.
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

// literalOf returns a literal's text. If case is ignored, it returns the longest
// ASCII part without letters that fold to non-ASCII ones (k and the Kelvin sign, s
// and the long s).
func literalOf(re *syntax.Regexp) []literal {
	text := string(re.Rune)
	if strings.ContainsRune(text, utf8.RuneError) {
		return nil // it matches any invalid UTF-8
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

// frequency ranks bytes by how common they are in text.
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
		if bytes.EqualFold(data[begin:begin+len(l.text)], []byte(l.text)) {
			return begin
		}
	}
}

// indexFrom returns the index of the first b in data[at:], or len(data). known is a
// previous result.
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

// finder finds the next place that may contain a match.
type finder struct {
	literals []literal
	next     [maxLiterals]int
}

// nextCandidate returns the index of the first literal in data[at:], or -1. For the
// same data, at must start with 0 and increase.
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
