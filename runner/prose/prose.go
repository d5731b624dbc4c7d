// Package prose divides the Markdown of a model's answer into blocks that are
// safe to show. Links are shown with their target, images as their description,
// HTML as text, and invisible and control characters as escapes. Nothing is
// left out, and reference links stay text, so that nothing is shown that is
// defined elsewhere in the answer.
package prose

import (
	"fmt"
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/caisson-run/caisson/tools"
)

// Kind is the kind of a [Block].
type Kind int

// The kinds of blocks.
const (
	Paragraph Kind = iota
	Heading
	Code
	Rule
	Table
)

// Block is one block of a text. Lists and quotes are prefixes of their blocks.
type Block struct {
	Kind Kind
	// Level is a heading's level, from 1.
	Level int
	// First begins a block's first line, and Rest its others: list markers, and
	// "> " for quotes. Both are empty for code.
	First, Rest string
	// Gap reports that an empty line precedes the block.
	Gap bool
	// Spans are the content of a paragraph or a heading.
	Spans []Span
	// Rows are a table's rows, with equal numbers of cells. The first has the
	// columns' names. Right reports which columns are aligned right.
	Rows  [][]Cell
	Right []bool
	// Language is the word after the fence of code. Lines are the code.
	Language string
	Lines    []string
}

// Span is a piece of text in one style. Its only control characters are
// newlines.
type Span struct {
	Text               string
	Bold, Italic, Code bool
}

// Cell is the content of a table's cell.
type Cell []Span

const (
	// maxText bounds the Markdown that is parsed. A longer text is one
	// paragraph.
	maxText = 256 << 10
	// maxDepth bounds the depth of lists and quotes. What is deeper is text.
	maxDepth = 12
	// maxOpeners bounds brackets: parsing takes their number squared.
	maxOpeners = 2000
	// maxCells bounds the cells of all tables. Other tables are text.
	maxCells = 2000
)

// Parse returns the blocks of a text.
func Parse(markdown string) []Block {
	markdown = strings.ReplaceAll(markdown, "\r\n", "\n")
	if len(markdown) > maxText || isCostly(markdown) {
		return []Block{{Spans: []Span{{Text: safeLines(markdown)}}}}
	}
	source := []byte(strings.TrimRight(markdown, "\n") + "\n") // the parser drops an unfinished first line of code
	p := parser.NewParser(parser.WithBlockParsers(parser.DefaultBlockParsers()...), parser.WithInlineParsers(parser.DefaultInlineParsers()...))
	d := &divider{source: source}
	d.addChildren(p.Parse(text.NewReader(source)), "", "", 0)
	return d.blocks
}

// isCostly reports whether a text has more nesting than any answer.
func isCostly(markdown string) bool {
	if strings.Count(markdown, "[")+strings.Count(markdown, "]") > maxOpeners || strings.Count(markdown, "<") > maxOpeners {
		return true
	}
	for line := range strings.SplitSeq(markdown, "\n") {
		body := strings.TrimLeft(line, " \t>-*+0123456789.)")
		if strings.ContainsAny(line[:len(line)-len(body)], ">-*+.)") && len(line)-len(body) > 200 {
			return true
		}
	}
	return false
}

type divider struct {
	source []byte
	blocks []Block
	cells  int // of all tables so far
}

func (d *divider) appendBlock(b Block) {
	b.Gap = b.Gap && len(d.blocks) > 0
	d.blocks = append(d.blocks, b)
}

// addChildren adds the blocks of a node. first begins the first line, and rest
// all others.
func (d *divider) addChildren(n ast.Node, first, rest string, depth int) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		d.addBlock(c, first, rest, depth)
		first = rest
	}
}

func (d *divider) addBlock(n ast.Node, first, rest string, depth int) {
	gap := n.PreviousSibling() != nil && (depth == 0 || n.HasBlankPreviousLines())
	b := Block{First: first, Rest: rest, Gap: gap || n.HasBlankPreviousLines()}
	switch n := n.(type) {
	case *ast.Blockquote:
		if depth < maxDepth {
			d.addContainer(n, first+"> ", rest+"> ", depth)
			return
		}
		b.Spans = []Span{{Text: d.rawText(n)}}
	case *ast.List:
		d.addList(n, first, rest, depth)
		return
	case *ast.Heading:
		b.Kind, b.Level = Heading, n.Level
		b.Spans = d.spansOf(n, Span{})
	case *ast.FencedCodeBlock:
		b.Kind, b.Lines = Code, d.linesOf(n)
		if n.Info != nil {
			b.Language = safeLine(string(n.Info.Value(d.source)))
		}
	case *ast.CodeBlock:
		b.Kind, b.Lines = Code, d.linesOf(n)
	case *ast.ThematicBreak:
		b.Kind = Rule
	case *ast.HTMLBlock:
		lines := d.linesOf(n)
		if n.HasClosure() {
			lines = append(lines, strings.TrimRight(safeLine(strings.TrimRight(string(n.ClosureLine.Value(d.source)), "\n")), " "))
		}
		b.Spans = []Span{{Text: strings.Join(lines, "\n")}}
	default:
		b.Rows, b.Right = d.tableOf(n)
		if b.Rows != nil {
			b.Kind = Table
		} else {
			b.Spans = d.spansOf(n, Span{})
		}
	}
	if b.Kind == Code && strings.TrimSpace(first) != "" && first != rest { // an item's marker gets its own block
		d.appendBlock(Block{First: first, Rest: rest, Gap: b.Gap})
		b.Gap = false
	}
	if b.Kind == Code {
		b.First, b.Rest = "", ""
	}
	d.appendBlock(b)
}

// addContainer adds the blocks of a quote or an item, or its prefix if it is
// empty.
func (d *divider) addContainer(n ast.Node, first, rest string, depth int) {
	before := len(d.blocks)
	d.addChildren(n, first, rest, depth+1)
	if len(d.blocks) == before {
		d.appendBlock(Block{First: first, Rest: rest})
	} else if n.HasBlankPreviousLines() || depth == 0 && n.PreviousSibling() != nil {
		d.blocks[before].Gap = before > 0
	}
}

func (d *divider) addList(n *ast.List, first, rest string, depth int) {
	number := n.Start
	for item := n.FirstChild(); item != nil; item = item.NextSibling() {
		marker := "- "
		if n.IsOrdered() {
			marker = fmt.Sprintf("%d%c ", number, n.Marker)
			number++
		}
		before := len(d.blocks)
		if depth >= maxDepth {
			d.appendBlock(Block{First: first + marker, Rest: rest, Spans: []Span{{Text: d.rawText(item)}}})
		} else {
			d.addContainer(item, first+marker, rest+strings.Repeat(" ", len(marker)), depth+1)
		}
		if item == n.FirstChild() && depth == 0 && n.PreviousSibling() != nil {
			d.blocks[before].Gap = before > 0
		}
		first = rest
	}
}

// rawText returns the source of a node that is too deep to be divided.
func (d *divider) rawText(n ast.Node) string {
	var parts []string
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering && n.Type() == ast.TypeBlock && n.Lines() != nil {
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				parts = append(parts, strings.TrimSpace(string(line.Value(d.source))))
			}
		}
		return ast.WalkContinue, nil
	})
	return safeLine(strings.Join(parts, " "))
}

func (d *divider) linesOf(n ast.Node) []string {
	var lines []string
	for i := range n.Lines().Len() {
		line := n.Lines().At(i)
		lines = append(lines, safeLines(strings.TrimSuffix(string(line.Value(d.source)), "\n")))
	}
	return lines
}

// spansOf returns the content of a node. style is the style around it.
func (d *divider) spansOf(n ast.Node, style Span) []Span {
	var spans []Span
	add := func(text string) {
		if text != "" {
			s := style
			s.Text = text
			spans = append(spans, s)
		}
	}
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			if style.Code {
				add(safeLine(strings.ReplaceAll(string(c.Value(d.source)), "\n", " ")))
			} else {
				add(safeLine(decodeText(c.Value(d.source))))
			}
			if c.SoftLineBreak() || c.HardLineBreak() {
				add("\n")
			}
		case *ast.String:
			add(safeLine(string(c.Value)))
		case *ast.CodeSpan:
			inner := style
			inner.Code = true
			spans = append(spans, d.spansOf(c, inner)...)
		case *ast.Emphasis:
			inner := style
			inner.Bold, inner.Italic = style.Bold || c.Level == 2, style.Italic || c.Level != 2
			spans = append(spans, d.spansOf(c, inner)...)
		case *ast.Link:
			inner := d.spansOf(c, style)
			spans = append(spans, inner...)
			add(linkTarget(plainText(inner), c.Destination, c.Title))
		case *ast.Image:
			add("image: ")
			inner := d.spansOf(c, style)
			spans = append(spans, inner...)
			add(linkTarget(plainText(inner), c.Destination, c.Title))
		case *ast.AutoLink:
			add(safeLine(string(c.Label(d.source))))
		case *ast.RawHTML:
			for i := range c.Segments.Len() {
				segment := c.Segments.At(i)
				add(safeLines(string(segment.Value(d.source))))
			}
		default:
			spans = append(spans, d.spansOf(c, style)...)
		}
	}
	return spans
}

// linkTarget returns the text after a link's text: its target, unless both are
// the same.
func linkTarget(shown string, destination, title []byte) string {
	target := safeLine(string(destination))
	if len(title) > 0 {
		target += " " + safeLine(string(title))
	}
	if target == shown {
		return ""
	}
	return " (" + target + ")"
}

func plainText(spans []Span) string {
	var b strings.Builder
	for _, s := range spans {
		b.WriteString(s.Text)
	}
	return b.String()
}

// decodeText removes backslashes before markers and resolves character
// references.
func decodeText(value []byte) string {
	return string(util.UnescapePunctuations(util.ResolveEntityNames(util.ResolveNumericReferences(value))))
}

func safeLine(s string) string {
	safe, _ := tools.Display(s)
	return safe
}

func safeLines(s string) string {
	safe, _ := tools.DisplayLines(s)
	return safe
}

// tableOf returns the rows of a paragraph that is a table, and which columns
// are aligned right. A table is a line of names, a line of dashes with as many
// columns, and rows with at most as many. The parser's own extension drops
// further cells, and pads rows without a bound.
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

func cutCells(line string) []string {
	line = strings.TrimPrefix(strings.TrimSpace(line), "|")
	if rest, ok := strings.CutSuffix(line, "|"); ok && !strings.HasSuffix(rest, `\`) {
		line = rest
	}
	const escaped = "\x00" // not in ordinary text
	line = strings.ReplaceAll(line, `\|`, escaped)
	cells := strings.Split(line, "|")
	for i, c := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(c, escaped, "|"))
	}
	return cells
}

// delimiters returns the columns of a line of dashes, and which are aligned
// right. It returns nil for any other line.
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
