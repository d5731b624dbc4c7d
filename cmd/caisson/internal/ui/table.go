package ui

import (
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// minLastColumn is the room that a table's last column needs beside the others.
const minLastColumn = 20

// WriteTable writes rows of safe cells in columns. On a terminal of so many columns,
// 0 for none, the last one is broken at blanks, or begins a line of its own if it has
// no room.
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
