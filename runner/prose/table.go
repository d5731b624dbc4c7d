package prose

import (
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// tableOf returns the rows of a paragraph that is a table, and which columns end at the right:
// a line with names, one of dashes with as many columns, and rows of at most as many. The
// extension of the parser drops further cells, and pads rows without a bound.
func (d *divider) tableOf(n ast.Node) (rows [][]Cell, right []bool) {
	if n.Kind() != ast.KindParagraph && n.Kind() != ast.KindTextBlock || n.Lines().Len() < 2 {
		return nil, nil
	}
	source := func(i int) string {
		segment := n.Lines().At(i)
		return string(segment.Value(d.source))
	}
	right = delimiters(cutCells(source(1)))
	columns := len(right)
	if columns == 0 || !strings.Contains(source(0), "|") || !strings.Contains(source(1), "|") || d.cells+columns*n.Lines().Len() > maxCells {
		return nil, nil
	}
	cells := parser.NewParser(parser.WithBlockParsers(util.Prioritized(parser.NewParagraphParser(), 1000)), parser.WithInlineParsers(parser.DefaultInlineParsers()...))
	for i := range n.Lines().Len() {
		found := cutCells(source(i))
		switch {
		case i == 1:
			continue
		case len(found) > columns, i == 0 && len(found) < columns:
			return nil, nil
		}
		row := make([]Cell, columns)
		for k, cell := range found {
			in := &divider{source: []byte(cell + "\n")}
			if p := cells.Parse(text.NewReader(in.source)).FirstChild(); p != nil {
				row[k] = in.spansOf(p, Span{})
			}
		}
		rows = append(rows, row)
	}
	d.cells += columns * len(rows)
	return rows, right
}

// cutCells returns the cells of a row.
func cutCells(line string) []string {
	line = strings.TrimPrefix(strings.TrimSpace(line), "|")
	if rest, ok := strings.CutSuffix(line, "|"); ok && !strings.HasSuffix(rest, `\`) {
		line = rest
	}
	const escaped = "\x00" // the parser has no such character
	line = strings.ReplaceAll(line, `\|`, escaped)
	cells := strings.Split(line, "|")
	for i, c := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(c, escaped, "|"))
	}
	return cells
}

// delimiters returns the columns of a line of dashes, and which of them end at the right. It
// returns nil for any other line.
func delimiters(cells []string) []bool {
	var right []bool
	for _, c := range cells {
		dashes := strings.TrimSuffix(strings.TrimPrefix(c, ":"), ":")
		if dashes == "" || strings.Trim(dashes, "-") != "" {
			return nil
		}
		right = append(right, strings.HasSuffix(c, ":") && !strings.HasPrefix(c, ":"))
	}
	return right
}
