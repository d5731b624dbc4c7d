package ui

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// verbatimIndent begins lines that must not be wrapped: output of commands, and code in
// a model's text.
const verbatimIndent = "    "

// WrapWords wraps a line at blanks into rows of at most width cells. It begins the rows
// after the first with indent. A longer word stays whole: a broken path can't be
// copied.
func WrapWords(l string, width int, indent string) []string {
	if ansi.StringWidth(l) <= width {
		return []string{l}
	}
	body := strings.TrimLeft(l, " ")
	row := l[:len(l)-len(body)]
	var rows []string
	for i, word := range strings.Split(body, " ") {
		switch {
		case i == 0:
			row += word
		case ansi.StringWidth(row)+1+ansi.StringWidth(word) <= width || isCombining(word):
			row += " " + word
		case word != "":
			rows = append(rows, row)
			row = indent + word
		}
	}
	return append(rows, row)
}

// isCombining reports whether word begins with a mark that combines with the blank
// before it.
func isCombining(word string) bool {
	cluster, _ := ansi.FirstGraphemeCluster(" "+word, ansi.GraphemeWidth)
	return len(cluster) > 1
}

// Wrap wraps lines at blanks for a terminal of this width. It leaves fenced code, and
// lines indented as far as code, to the terminal.
func Wrap(lines []string, columns int) []string {
	var rows []string
	fenced := false
	for _, l := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		if fence || fenced || strings.HasPrefix(l, verbatimIndent) {
			rows = append(rows, l)
		} else {
			rows = append(rows, WrapWords(l, max(columns-1, 1), hangingIndent(l))...)
		}
		fenced = fenced != fence
	}
	return rows
}

// hangingIndent returns the indentation of the rows after a line's first: the line's
// own, plus room for its sign, bullet or number.
func hangingIndent(l string) string {
	plain := ansi.Strip(l)
	body := strings.TrimLeft(plain, " ")
	indent := plain[:len(plain)-len(body)]
	sign, size := utf8.DecodeRuneInString(body)
	number := strings.TrimLeft(body, "0123456789")
	switch digits := len(body) - len(number); {
	case digits > 0 && (strings.HasPrefix(number, ". ") || strings.HasPrefix(number, ") ")):
		indent += strings.Repeat(" ", digits+2)
	case !unicode.IsLetter(sign) && !unicode.IsDigit(sign) && strings.HasPrefix(body[size:], " "):
		indent += "  "
	}
	return indent
}

// hardWrap breaks foreign text without styles into rows of at most width cells,
// anywhere.
func hardWrap(text string, width int) []string {
	return strings.Split(ansi.Hardwrap(text, max(width, 1), true), "\n")
}

// rowsOf returns the number of rows that a printed line takes. A wide character is
// never split.
func rowsOf(l string, columns int) int {
	rows, column := 1, 0
	for l = ansi.Strip(l); l != ""; {
		cluster, width := ansi.FirstGraphemeCluster(l, ansi.GraphemeWidth)
		if column+width > columns && column > 0 {
			rows, column = rows+1, 0
		}
		column += width
		l = l[len(cluster):]
	}
	return rows
}

// SureWidth replaces characters whose width differs between terminals, such as flags
// and emoji with a skin tone: the live region counts cells.
func SureWidth(s string) string {
	var b strings.Builder
	for s != "" {
		cluster, width := ansi.FirstGraphemeCluster(s, ansi.GraphemeWidth)
		s = s[len(cluster):]
		if ansi.StringWidthWc(cluster) != width || width > 1 && utf8.RuneCountInString(cluster) > 1 {
			cluster = "?"
		}
		b.WriteString(cluster)
	}
	return b.String()
}

// minLastColumn is the least room for a table's last column beside the others.
const minLastColumn = 20

// WriteTable writes rows of safe cells in columns. On a terminal, unless columns is 0,
// it wraps the last column at blanks, or puts it on its own line if there is no room.
func WriteTable(w io.Writer, columns int, rows [][]string) error {
	last := len(rows[0]) - 1
	widths := make([]int, last)
	indent := 0
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(row[i]))
		}
		indent += widths[i] + 2
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row[:last] {
			line.WriteString(cell + strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+2))
		}
		cells := []string{row[last]}
		below := strings.Repeat(" ", indent)
		switch {
		case row[last] == "":
		case columns > 0 && columns-indent < minLastColumn:
			below = "  "
			cells = append([]string{""}, Wrap(cells, columns-len(below))...)
		case columns > 0:
			cells = Wrap(cells, columns-indent)
		}
		line.WriteString(strings.Join(cells, "\n"+below))
		for l := range strings.SplitSeq(line.String(), "\n") {
			b.WriteString(strings.TrimRight(l, " ") + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
