package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

const (
	// inDiffBytes is the size above which an argument of a call with a diff is only
	// shown in the diff.
	inDiffBytes = 200
	// maxBlanks is the length from which a run of blanks is shown as a count: it would
	// push the text after it off the screen.
	maxBlanks = 64
)

// argumentLines returns the input in readable form, one section for each argument. A
// text of several lines is shown behind a bar, so that its lines can't look like ours.
// Arguments are left out if the diff shows each of their lines and, unless everything
// is set, if they are long and there is a diff.
func (q question) argumentLines(columns int, everything bool) []section {
	var input map[string]json.RawMessage
	if json.Unmarshal(q.Exact, &input) != nil {
		text := q.Input // the dispatcher has shortened it
		if len(q.Exact) > 0 {
			text = string(q.Exact)
		}
		return []section{{rows: wrapForeign("  ", text, columns)}}
	}
	if len(input) == 0 {
		return []section{{rows: []string{"  without arguments"}}}
	}
	var sections []section
	var left []string
	for _, key := range slices.Sorted(maps.Keys(input)) {
		if q.isInDiff(input[key]) {
			left = append(left, key)
			continue
		}
		sections = append(sections, section{rows: q.argumentLine(key, input[key], columns, everything)})
	}
	if len(left) > 0 {
		sections = append(sections, section{rows: wrapForeign("  ", strings.Join(left, ", ")+": see the diff", columns)})
	}
	return sections
}

// isInDiff reports whether the diff of a call that executes nothing shows each line of
// a text as, or in, an added or removed line.
func (q question) isInDiff(value json.RawMessage) bool {
	var text string
	if q.Diff == "" || q.Class == tools.ClassExecute || q.DiffElided || json.Unmarshal(value, &text) != nil || text == "" {
		return false
	}
	var changed []string
	for l := range strings.Lines(q.Diff) {
		if (l[0] == '+' || l[0] == '-') && !strings.HasPrefix(l, "+++ ") && !strings.HasPrefix(l, "--- ") {
			changed = append(changed, strings.TrimSuffix(l[1:], "\n"))
		}
	}
	for l := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if !slices.ContainsFunc(changed, func(c string) bool { return strings.Contains(c, l) }) {
			return false
		}
	}
	return true
}

func (q question) argumentLine(key string, value json.RawMessage, columns int, everything bool) []string {
	var text string
	if json.Unmarshal(value, &text) != nil || text == "" {
		return wrapForeign("  ", key+": "+string(value), columns)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if q.Diff != "" && q.Class != tools.ClassExecute && !everything && (len(text) > inDiffBytes || len(lines) > 1) {
		return wrapForeign("  ", fmt.Sprintf("%s: %s in %s, see the diff", key, limits.FormatCount(len(text), "byte"), limits.FormatCount(len(lines), "line")), columns)
	}
	if !strings.Contains(text, "\n") {
		return wrapForeign("  ", key+": "+text, columns)
	}
	rows := wrapForeign("  ", key+":", columns)
	for _, l := range lines {
		rows = append(rows, wrapForeign("  | ", replaceTabs(l), columns)...)
	}
	return rows
}

// moreBar begins a continued row, so that it can't look like one of our lines.
const moreBar = "  ¦ "

// wrapForeign returns foreign text as rows of a terminal, broken wherever a row is
// full.
func wrapForeign(prefix, text string, columns int) []string {
	rows := hardWrap(countBlanks(safeLine(text)), columns-len(moreBar))
	for i := range rows {
		if rows[i] = prefix + rows[i]; i == 0 {
			prefix = moreBar
		}
	}
	return rows
}

// wrapSentence returns a sentence of ours with foreign text as rows of a terminal,
// broken at blanks if possible.
func wrapSentence(text string, columns int) []string {
	var rows []string
	for _, row := range WrapWords(countBlanks(safeLine(text)), columns-len(moreBar), moreBar) {
		if rest, more := strings.CutPrefix(row, moreBar); more {
			rows = append(rows, wrapForeign(moreBar, rest, columns)...)
		} else {
			rows = append(rows, wrapForeign("", row, columns)...)
		}
	}
	return rows
}

// replaceTabs replaces tabs by blanks, for text of several lines.
func replaceTabs(text string) string { return strings.ReplaceAll(text, "\t", "    ") }

// countBlanks replaces long runs of blanks by their number.
func countBlanks(text string) string {
	long := strings.Repeat(" ", maxBlanks)
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, long)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = strings.TrimLeft(rest, " ")
		fmt.Fprintf(&b, `\x20{×%d}`, maxBlanks+len(rest)-len(text))
	}
}
