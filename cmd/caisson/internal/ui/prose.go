package ui

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/runner/prose"
)

// maxCells is the width of a table without a terminal.
const maxCells = 200

// blankInCode stands for a blank where a line must not be broken. It is a private-use
// character, so safe foreign text doesn't have it.
const blankInCode = "\ue000"

// Prose returns a model's Markdown as safe lines. It wraps them at blanks for a terminal
// with this number of columns, unless that is 0. A block of code loses the prefix of the
// list or quote around it. Without colour, Markdown's markers stay.
func Prose(markdown string, columns int, colour bool) []string {
	s := style{colour}
	var lines []string
	for _, b := range prose.Parse(markdown) {
		if b.Gap {
			lines = append(lines, "")
		}
		switch b.Kind {
		case prose.Code:
			lines = append(lines, "```"+b.Language)
			for _, l := range b.Lines {
				lines = append(lines, wrapCode(l, columns)...)
			}
			lines = append(lines, "```")
			continue
		case prose.Rule:
			lines = append(lines, b.First+"---")
			continue
		case prose.Table:
			first := b.First
			cells := maxCells
			if columns > 0 {
				cells = max(columns-1-len(b.Rest), 1)
			}
			for _, row := range s.tableRows(b, cells) {
				lines = append(lines, strings.TrimRight(first+row, " "))
				first = b.Rest
			}
			continue
		}
		first := b.First
		if b.Kind == prose.Heading {
			first += s.bold(strings.Repeat("#", b.Level) + " ")
		}
		for line := range strings.SplitSeq(s.renderSpans(b), "\n") {
			lines = append(lines, wrapProse(first+line, columns, b.Rest)...)
			first = b.Rest
		}
	}
	return lines
}

// wrapProse wraps a line that is not code.
func wrapProse(line string, columns int, rest string) []string {
	rows := []string{line}
	if columns > 0 {
		rows = WrapWords(line, max(columns-1, 1), rest)
	}
	for i, row := range rows {
		rows[i] = strings.ReplaceAll(row, blankInCode, " ")
	}
	return rows
}

// wrapCode wraps a line of code at blanks if it is too long for the terminal.
func wrapCode(line string, columns int) []string {
	expanded := strings.ReplaceAll(line, "\t", strings.Repeat(" ", 8))
	if columns <= 0 || ansi.StringWidth(expanded) < columns {
		return []string{line}
	}
	body := strings.TrimLeft(expanded, " ")
	return WrapWords(expanded, max(columns-1, 1), expanded[:len(expanded)-len(body)]+"  ")
}

// renderSpans returns the content of a block. Each line has complete styles.
func (s style) renderSpans(b prose.Block) string {
	var out strings.Builder
	for _, span := range b.Spans {
		for i, text := range strings.Split(span.Text, "\n") {
			if i > 0 {
				out.WriteString("\n")
			}
			out.WriteString(s.renderSpan(span, text, b.Kind == prose.Heading))
		}
	}
	return out.String()
}

// renderSpan returns a text in the style of its span, or with Markdown's markers.
func (s style) renderSpan(span prose.Span, text string, heading bool) string {
	if text == "" {
		return ""
	}
	if span.Code {
		text = strings.ReplaceAll(text, " ", blankInCode)
	}
	if !s.on {
		for _, m := range []struct {
			marker string
			use    bool
		}{{"`", span.Code}, {"*", span.Italic}, {"**", span.Bold}} {
			if m.use {
				text = m.marker + text + m.marker
			}
		}
		return text
	}
	var codes []string
	for _, c := range []struct {
		code string
		use  bool
	}{{"1", span.Bold || heading}, {"3", span.Italic}, {"36", span.Code}} {
		if c.use {
			codes = append(codes, c.code)
		}
	}
	if len(codes) == 0 {
		return text
	}
	return s.paint(strings.Join(codes, ";"), text)
}
