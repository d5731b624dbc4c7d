package file

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
)

// shown returns a path as results show it: as it is, or quoted and escaped if
// it contains what a reader would not see or would take for something else.
func shown(path string) string {
	_, hidden := tools.Display(path)
	spaced := "/" + path + "/"
	if hidden || strings.ContainsAny(path, "\n\t\"") || path == "" || strings.Contains(spaced, "/ ") || strings.Contains(spaced, " /") {
		return quotePath(path)
	}
	return path
}

// quotePath returns a Go string literal that escapes what [tools.Display]
// escapes.
func quotePath(path string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(path); {
		r, size := utf8.DecodeRuneInString(path[i:])
		piece := path[i : i+size]
		i += size
		if safe, _ := tools.Display(piece); safe == piece && piece != `"` && piece != `\` {
			b.WriteString(piece)
			continue
		}
		if r == utf8.RuneError && size == 1 {
			b.WriteString(`\x` + strconv.FormatUint(uint64(piece[0])|0x100, 16)[1:])
			continue
		}
		q := strconv.QuoteToASCII(piece)
		b.WriteString(q[1 : len(q)-1])
	}
	b.WriteByte('"')
	return b.String()
}

// unnameable reports whether a path can't be passed in an input, whose JSON is
// UTF-8.
func unnameable(path string) bool { return !utf8.ValidString(path) }
