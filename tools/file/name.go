package file

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// shown returns a path as results show it. It quotes paths that contain anything a
// reader would not see or would misread.
func shown(path string) string {
	_, hidden := tools.Display(path)
	spaced := "/" + path + "/"
	if hidden || strings.ContainsAny(path, "\n\t\"") || path == "" || strings.Contains(spaced, "/ ") || strings.Contains(spaced, " /") {
		return quotePath(path)
	}
	return path
}

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

// unnameable reports whether path can't be passed in an input: JSON is UTF-8.
func unnameable(path string) bool { return !utf8.ValidString(path) }

// foldName makes names that look alike equal: it composes letters and replaces
// typographic spaces, quotes and dashes.
func foldName(name string) string {
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf {
			return lookAlikes.Replace(norm.NFC.String(name))
		}
	}
	return name
}

// similarName returns words that name the only existing path that looks like name,
// or "".
func similarName(ctx context.Context, r workspace.View, name string) string {
	rel, err := r.Relative(name)
	if err != nil {
		return ""
	}
	found := "."
	for part := range strings.SplitSeq(rel, "/") {
		next := path.Join(found, part)
		if _, err := r.Lstat(ctx, next); err != nil {
			list, err := r.List(ctx, found, 1)
			if err != nil {
				return ""
			}
			next = ""
			for _, e := range list.Entries {
				if foldName(path.Base(e.Path)) != foldName(part) || unnameable(e.Path) {
					continue
				}
				if next != "" {
					return ""
				}
				next = e.Path
			}
			if next == "" {
				return ""
			}
		}
		found = next
	}
	if found == rel {
		return ""
	}
	return fmt.Sprintf("; a similar name is there: %s, in JSON %s", shown(found), quoteJSON(found))
}

func quoteJSON(s string) string {
	raw, _ := json.Marshal(s) // a string
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(string(raw))) {
		if unit < utf8.RuneSelf {
			b.WriteByte(byte(unit))
			continue
		}
		fmt.Fprintf(&b, `\u%04x`, unit)
	}
	return b.String()
}
