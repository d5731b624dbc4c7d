package prose

import (
	"fmt"
	"strconv"
	"strings"
)

// Escapes has functions that escape a text for HTML. Code is for text in a code
// element.
type Escapes struct{ Text, Code func(string) string }

// HTML returns blocks as HTML. Its elements have no attributes except the
// numbers of lists, and there are no links.
func HTML(blocks []Block, e Escapes) string {
	w := &htmlWriter{escapes: e}
	for i := range blocks {
		w.writeBlock(&blocks[i])
	}
	w.closeFrom(0)
	return w.out.String()
}

// htmlWriter writes blocks; open are the quotes and items around the last one.
type htmlWriter struct {
	out     strings.Builder
	escapes Escapes
	open    []container
}

// container is a quote or an item. Its lines begin with width characters.
type container struct {
	tag   string // blockquote, ul or ol
	width int
}

func (w *htmlWriter) writeBlock(b *Block) {
	w.openContainers(b.First)
	switch b.Kind {
	case Heading:
		level := strconv.Itoa(min(b.Level+2, 6)) // below a page's headings
		w.out.WriteString("<h" + level + ">" + w.spans(b.Spans) + "</h" + level + ">\n")
	case Code:
		// In Markdown, an empty line would end the element before, and this one
		// has empty lines.
		w.out.WriteString("\n<pre>" + w.escapes.Code(strings.Join(b.Lines, "\n")) + "</pre>\n")
	case Rule:
		w.out.WriteString("<hr>\n")
	case Table:
		w.writeTable(b.Rows)
	default:
		w.out.WriteString("<p>" + w.spans(b.Spans) + "</p>\n")
	}
}

func (w *htmlWriter) writeTable(rows [][]Cell) {
	w.out.WriteString("<table>\n")
	for i, row := range rows {
		tag := "td"
		if i == 0 {
			tag = "th"
		}
		w.out.WriteString("<tr>")
		for _, c := range row {
			w.out.WriteString("<" + tag + ">" + w.spans(c) + "</" + tag + ">")
		}
		w.out.WriteString("</tr>\n")
	}
	w.out.WriteString("</table>\n")
}

func (w *htmlWriter) spans(spans []Span) string {
	var joined []Span // a link's text is a separate span, but not a separate word in HTML
	for _, s := range spans {
		if last := len(joined) - 1; last >= 0 && !s.Code && joined[last] == (Span{joined[last].Text, s.Bold, s.Italic, false}) {
			joined[last].Text += s.Text
		} else if s.Text != "" {
			joined = append(joined, s)
		}
	}
	var b strings.Builder
	for _, s := range joined {
		lines := strings.Split(s.Text, "\n")
		for i, line := range lines {
			if s.Code {
				lines[i] = "<code>" + w.escapes.Code(line) + "</code>"
			} else {
				lines[i] = w.escapes.Text(line)
			}
		}
		text := strings.Join(lines, "<br>\n")
		for _, style := range []struct {
			tag string
			on  bool
		}{{"em", s.Italic}, {"strong", s.Bold}} {
			if style.on {
				text = "<" + style.tag + ">" + text + "</" + style.tag + ">"
			}
		}
		b.WriteString(text)
	}
	return b.String()
}

// openContainers closes the containers that a prefix leaves, and opens the ones
// that it begins.
func (w *htmlWriter) openContainers(prefix string) {
	for i, c := range w.open {
		head := prefix[:min(c.width, len(prefix))]
		if c.tag == "blockquote" && head == "> " || c.tag != "blockquote" && len(head) == c.width && strings.TrimSpace(head) == "" {
			prefix = prefix[len(head):]
			continue
		}
		if tag, _, rest := cutMarker(prefix); tag == c.tag && tag != "blockquote" { // the next item
			w.closeFrom(i + 1)
			w.out.WriteString("</li>\n<li>")
			w.open[i].width = len(prefix) - len(rest)
			prefix = rest
			w.openNew(prefix)
			return
		}
		w.closeFrom(i)
		break
	}
	w.openNew(prefix)
}

func (w *htmlWriter) openNew(prefix string) {
	for prefix != "" {
		tag, number, rest := cutMarker(prefix)
		switch tag {
		case "":
			prefix = prefix[1:]
			continue
		case "blockquote":
			w.out.WriteString("<blockquote>\n")
		case "ol":
			fmt.Fprintf(&w.out, "<ol start=\"%d\">\n<li>", number)
		default:
			w.out.WriteString("<ul>\n<li>")
		}
		w.open = append(w.open, container{tag, len(prefix) - len(rest)})
		prefix = rest
	}
}

// cutMarker returns the element of the marker at the beginning of a prefix, or
// "".
func cutMarker(prefix string) (tag string, number int, rest string) {
	if rest, ok := strings.CutPrefix(prefix, "> "); ok {
		return "blockquote", 0, rest
	}
	if rest, ok := strings.CutPrefix(prefix, "- "); ok {
		return "ul", 0, rest
	}
	digits := len(prefix) - len(strings.TrimLeft(prefix, "0123456789"))
	if number, err := strconv.Atoi(prefix[:digits]); err == nil && len(prefix) >= digits+2 {
		return "ol", number, prefix[digits+2:]
	}
	return "", 0, prefix
}

// closeFrom closes the containers from the nth, innermost first.
func (w *htmlWriter) closeFrom(n int) {
	for i := len(w.open) - 1; i >= n; i-- {
		if w.open[i].tag == "blockquote" {
			w.out.WriteString("</blockquote>\n")
		} else {
			w.out.WriteString("</li>\n</" + w.open[i].tag + ">\n")
		}
	}
	w.open = w.open[:min(n, len(w.open))]
}
