package ui

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/runner/prose"
)

// tableRows returns a table in rows of at most cells columns. It never breaks words: if
// they don't fit side by side, each row becomes a list.
func (s style) tableRows(b prose.Block, cells int) []string {
	words := make([][][]string, len(b.Rows)) // of each cell
	columns := len(b.Rows[0])
	widths, natural := make([]int, columns), make([]int, columns)
	for i, row := range b.Rows {
		for k, c := range row {
			list := s.cellWords(c, i == 0)
			words[i] = append(words[i], list)
			for _, w := range list {
				widths[k] = max(widths[k], ansi.StringWidth(w))
			}
			natural[k] = max(natural[k], ansi.StringWidth(strings.Join(list, " ")))
		}
	}
	room := cells - 3*(columns-1)
	for _, w := range widths {
		room -= w
	}
	if room < 0 {
		return s.tableList(words, cells)
	}
	widen(widths, natural, room)
	return s.layTable(words, widths, b.Right)
}

// widen gives room to the columns that lack most.
func widen(widths, natural []int, room int) {
	for ; room > 0; room-- {
		most := 0
		for k := range widths {
			if natural[k]-widths[k] > natural[most]-widths[most] {
				most = k
			}
		}
		if natural[most] <= widths[most] {
			return
		}
		widths[most]++
	}
}

// layTable returns the rows of a table with these column widths. If a cell needs
// several rows of the terminal, it draws lines between the table's rows.
func (s style) layTable(words [][][]string, widths []int, right []bool) []string {
	var blocks [][]string
	tall := false
	for _, row := range words {
		var lines [][]string // of each cell
		height := 1
		for k, list := range row {
			cell := WrapWords(strings.Join(list, " "), widths[k], "")
			lines = append(lines, cell)
			height = max(height, len(cell))
		}
		block := make([]string, height)
		for at := range block {
			for k := range row {
				text := ""
				if at < len(lines[k]) {
					text = lines[k][at]
				}
				pad := strings.Repeat(" ", max(widths[k]-ansi.StringWidth(text), 0))
				if text += pad; right[k] {
					text = pad + text[:len(text)-len(pad)]
				}
				if k > 0 {
					block[at] += s.dim(" │ ")
				}
				block[at] += text
			}
			block[at] = strings.TrimRight(block[at], " ")
		}
		blocks = append(blocks, block)
		tall = tall || height > 1
	}
	var rules []string
	for _, w := range widths {
		rules = append(rules, strings.Repeat("─", w))
	}
	rule := s.dim(strings.Join(rules, "─┼─"))
	var out []string
	for i, block := range blocks {
		if i == 1 || i > 1 && tall {
			out = append(out, rule)
		}
		out = append(out, block...)
	}
	return out
}

// tableList returns each row of a table as a list of named cells.
func (s style) tableList(words [][][]string, cells int) []string {
	var out []string
	for i, row := range words[1:] {
		if i > 0 {
			out = append(out, "")
		}
		for k, list := range row {
			line := strings.Join(slices.Concat(words[0][k], []string{"─"}, list), " ")
			out = append(out, WrapWords(line, cells, "  ")...)
		}
	}
	return out
}

// cellWords returns the words of a cell. Each has complete styles.
func (s style) cellWords(c prose.Cell, head bool) []string {
	words := []string{""}
	for _, span := range c {
		for i, part := range strings.Split(strings.ReplaceAll(span.Text, "\n", " "), " ") {
			if i > 0 {
				words = append(words, "")
			}
			words[len(words)-1] += s.renderSpan(span, part, head)
		}
	}
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}
