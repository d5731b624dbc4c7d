package chat

import (
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/tools"
)

const (
	// firstMark and nextMark begin the composer's rows. cutMark begins the first one if
	// rows above it are hidden.
	firstMark, nextMark, cutMark = "› ", "  ", "⋮ "
	// layoutBytes is how much of a draft is laid out on each side of the cursor. It
	// exceeds a live region.
	layoutBytes = 4096
)

type composerRows struct {
	rows []string
	// row is the cursor's. before is its text before the cursor, and at the character
	// under it.
	row        int
	before, at string
}

// layOut wraps a draft into at most most rows of cells columns.
func layOut(text string, cursor, cells, most int) composerRows {
	text, cursor, cut := clipDraft(text, cursor)
	room := max(cells-ansi.StringWidth(firstMark)-1, 1) // one for the cursor at the end
	l := composerRows{rows: []string{""}, row: -1}
	width := 0
	place := func(at string) {
		l.row, l.before, l.at = len(l.rows)-1, l.rows[len(l.rows)-1], at
	}
	for at := 0; at < len(text); {
		cluster, _ := ansi.FirstGraphemeCluster(text[at:], ansi.GraphemeWidth)
		here := l.row < 0 && cursor < at+len(cluster)
		at += len(cluster)
		if cluster == "\n" {
			if here {
				place(" ")
				l.rows[l.row] += " "
			}
			l.rows, width = append(l.rows, ""), 0
			continue
		}
		shown := displayCharacter(cluster)
		w := ansi.StringWidth(shown)
		if width+w > room && width > 0 {
			l.rows, width = append(l.rows, ""), 0
		}
		if here {
			place(shown)
		}
		l.rows[len(l.rows)-1] += shown
		width += w
	}
	if l.row < 0 {
		place(" ")
		l.rows[l.row] += " "
	}
	return l.cutWindow(max(most, 1), cut)
}

// clipDraft cuts a long draft around its cursor. Its start moves in steps of a
// kilobyte, so that rows stay where they are.
func clipDraft(text string, cursor int) (string, int, bool) {
	start, end := 0, min(len(text), cursor+layoutBytes)
	if cursor > layoutBytes {
		start = (cursor - layoutBytes) / 1024 * 1024
		for start < cursor && !utf8.RuneStart(text[start]) {
			start++
		}
	}
	for end < len(text) && !utf8.RuneStart(text[end]) {
		end++
	}
	return text[start:end], cursor - start, start > 0
}

// cutWindow keeps the rows around the cursor, and marks them.
func (l composerRows) cutWindow(most int, cut bool) composerRows {
	first := 0
	if len(l.rows) > most {
		first = min(max(l.row-most+1, 0), len(l.rows)-most)
	}
	rows := l.rows[first:min(first+most, len(l.rows))]
	l.row -= first
	for i := range rows {
		mark := nextMark
		switch {
		case i == 0 && (cut || first > 0):
			mark = cutMark
		case i == 0:
			mark = firstMark
		}
		if i == l.row {
			l.before = ui.SureWidth(mark + l.before)
		}
		rows[i] = ui.SureWidth(mark + rows[i]) // a draft's first character could combine with the mark
	}
	l.rows = rows
	return l
}

// displayCharacter returns a character for the live region.
func displayCharacter(cluster string) string {
	if cluster == "\t" {
		return "    "
	}
	if sure := ui.SureWidth(cluster); sure != cluster {
		return sure
	}
	safe, _ := tools.Display(cluster)
	return safe
}
