package jsonschema

import (
	"errors"
	"regexp"
	"regexp/syntax"
)

// maxPatternSize bounds a pattern's size with its repetitions written out, and so
// its memory and time: a{1000}{1000} is a million.
const maxPatternSize = 5000

var errPatternSize = errors.New("pattern is too large: its repetitions multiply")

// pattern is a regular expression and the approximate number of its instructions.
type pattern struct {
	*regexp.Regexp
	size int
}

// newPattern compiles a pattern. Its error is errPatternSize or package regexp's.
func newPattern(text string) (*pattern, error) {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err //nolint:wrapcheck // it reads well alone
	}
	size := sizeOf(tree)
	if size > maxPatternSize {
		return nil, errPatternSize
	}
	re, err := regexp.Compile(text)
	return &pattern{re, size}, err //nolint:wrapcheck // it reads well alone
}

// sizeOf returns the size of an expression with its repetitions written out, or
// maxPatternSize+1 if it is larger.
func sizeOf(re *syntax.Regexp) int {
	size := 1
	if re.Op == syntax.OpLiteral || re.Op == syntax.OpCharClass {
		size = max(len(re.Rune), 1)
	}
	for _, sub := range re.Sub {
		size += sizeOf(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return min(size, maxPatternSize+1)
}
