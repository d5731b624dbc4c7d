package main

import (
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/cmd/caisson/internal/terminal"
)

// minLastColumn is the room that a table's last column needs beside the others.
const minLastColumn = 20

// writeTable prints rows of safe cells in columns on standard output. On a terminal the
// last column is broken at blanks, or begins a line of its own where it has no room.
func writeTable(a *app, rows [][]string) error {
	columns := 0
	if a.terminal(a.stdout) {
		columns, _ = a.size()
	}
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
			cells = append([]string{""}, terminal.Wrap(cells, columns-len(below))...)
		case columns > 0:
			cells = terminal.Wrap(cells, columns-indent)
		}
		line.WriteString(strings.Join(cells, "\n"+below))
		for l := range strings.SplitSeq(line.String(), "\n") {
			b.WriteString(strings.TrimRight(l, " ") + "\n")
		}
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}
