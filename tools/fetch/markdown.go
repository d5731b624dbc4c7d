package fetch

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of HTML to convert. The converter copies the text of an element at each
// level and prefixes each line of a list or quotation, so nesting multiplies the
// cost. Elements nested deeper are replaced by their text. Within these bounds, the
// worst pages found take less than 2 s on two busy cores.
const (
	maxHTMLBytes = 4 << 20
	maxDepth     = 64
	maxPrefixed  = 8
	maxSpan      = 16
	maxNodes     = 200_000
	maxLinkBytes = 8 << 10
)

// convertHTML converts a page to Markdown. Its error is a *failure.
func (p *page) convertHTML(text, at string) (string, error) {
	if len(text) > maxHTMLBytes {
		text = strings.ToValidUTF8(text[:maxHTMLBytes], "")
		p.addNote("only the first %d MiB of the HTML were converted; raw gives it as it is", maxHTMLBytes>>20)
	}
	doc, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return "", newFailure("html", "the page's HTML can't be converted (%.100s); raw gives it as it is", err)
	}
	base, err := url.Parse(at)
	if err != nil {
		base = &url.URL{}
	}
	t := trimmer{base: base}
	t.trimChildren(doc, 0, 0, false)
	if t.nodes > maxNodes {
		return "", newFailure("html", "the page's HTML has more than %d elements; raw gives it as it is", maxNodes)
	}
	if t.removed > 0 {
		p.addNote("%d hidden elements were left out", t.removed)
	}
	out, err := convertNode(doc)
	if err != nil {
		return "", newFailure("html", "the page's HTML can't be converted (%.100s); raw gives it as it is", err)
	}
	if t.title != "" && !strings.Contains(out, "# "+t.title) {
		out = "# " + t.title + "\n\n" + out
	}
	return out, nil
}

// convertNode runs the converter, and returns its panics as errors: it is not made
// for hostile pages.
func convertNode(doc *html.Node) (text string, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the converter gave up")
		}
	}()
	conv := converter.NewConverter(converter.WithPlugins(
		base.NewBasePlugin(), commonmark.NewCommonmarkPlugin(), table.NewTablePlugin(),
	))
	out, err := conv.ConvertNode(doc)
	return restoreBrackets(string(out)), err
}

// bracketStandIn replaces "[" in text during the conversion. At each "[", the
// converter's escaper (html-to-markdown v2.5.2) scans to the end of the text, so
// 256 KiB of them took 19 s. It is a private-use character, which is removed from
// the page first.
const bracketStandIn = "\uf05b"

func hideBrackets(text string) string {
	return strings.NewReplacer(bracketStandIn, "", "[", bracketStandIn).Replace(text)
}

// restoreBrackets puts the brackets back. It escapes a bracket that would begin a
// link, a picture or a definition, so that text doesn't become a link.
func restoreBrackets(text string) string {
	var links []bool // the last one first
	closing := -1
	for i := len(text) - 1; i >= 0; i-- {
		switch {
		case text[i] == ']':
			closing = i
		case strings.HasPrefix(text[i:], bracketStandIn):
			rest := ""
			if closing >= 0 {
				rest = text[closing+1:]
			}
			links = append(links, rest != "" && strings.IndexByte("([:", rest[0]) >= 0 || strings.HasPrefix(rest, bracketStandIn))
		}
	}
	var b strings.Builder
	for i, part := range strings.Split(text, bracketStandIn) {
		if i > 0 {
			if links[len(links)-i] {
				b.WriteByte('\\')
			}
			b.WriteByte('[')
		}
		b.WriteString(part)
	}
	return b.String()
}

// trimmer removes from a parsed page what people don't see, and limits the cost of
// its conversion.
type trimmer struct {
	base    *url.URL
	nodes   int
	removed int
	title   string
}

// trimChildren trims the children of n. Verbatim text stays unchanged. The parser
// limits the depth of the recursion to 512.
func (t *trimmer) trimChildren(n *html.Node, depth, prefixed int, verbatim bool) {
	unwrapped := false
	for c := n.FirstChild; c != nil; {
		next := c.NextSibling
		t.nodes++
		switch {
		case t.nodes > maxNodes:
			return
		case c.Type == html.TextNode && !verbatim: // the converter doesn't escape verbatim text
			c.Data = hideBrackets(c.Data)
		case c.Type == html.CommentNode, c.Type == html.ElementNode && t.dropsElement(c):
			n.RemoveChild(c)
		case c.Type == html.ElementNode:
			t.trimAttributes(c)
			inner := prefixed
			if prefixesLines(c.DataAtom) {
				inner++
			}
			loses := depth >= maxDepth || inner > maxPrefixed
			t.trimChildren(c, depth+1, inner, verbatim || !loses && (c.DataAtom == atom.Code || c.DataAtom == atom.Pre))
			if loses && c.FirstChild != nil {
				unwrapElement(n, c)
				unwrapped = true
			}
		}
		c = next
	}
	if unwrapped {
		mergeText(n)
	}
}

// prefixesLines reports whether the converter prefixes each line of an element.
func prefixesLines(a atom.Atom) bool {
	return a == atom.Blockquote || a == atom.Ul || a == atom.Ol || a == atom.Dl
}

// unwrapElement replaces an element by its children. It adds a line break after a
// block.
func unwrapElement(parent, c *html.Node) {
	for child := c.FirstChild; child != nil; child = c.FirstChild {
		c.RemoveChild(child)
		parent.InsertBefore(child, c)
	}
	switch c.DataAtom {
	case atom.P, atom.Div, atom.Li, atom.Tr, atom.Pre, atom.Section, atom.Article, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		parent.InsertBefore(&html.Node{Type: html.ElementNode, Data: "br", DataAtom: atom.Br}, c)
	}
	parent.RemoveChild(c)
}

// mergeText merges adjacent text nodes. The converter would join them one by one
// and copy the text each time.
func mergeText(n *html.Node) {
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		if c.Type != html.TextNode || c.NextSibling == nil || c.NextSibling.Type != html.TextNode {
			continue
		}
		var b strings.Builder
		b.WriteString(c.Data)
		for next := c.NextSibling; next != nil && next.Type == html.TextNode; next = c.NextSibling {
			b.WriteString(next.Data)
			n.RemoveChild(next)
		}
		c.Data = b.String()
	}
}

// dropsElement reports whether an element is hidden or has no text for readers.
// It stores the page's title.
func (t *trimmer) dropsElement(n *html.Node) bool {
	switch n.DataAtom {
	case atom.Title:
		if t.title == "" && n.FirstChild != nil {
			t.title = utf8text.Clip(strings.Join(strings.Fields(n.FirstChild.Data), " "), 300)
		}
		return true
	case atom.Script, atom.Style, atom.Template, atom.Iframe, atom.Object, atom.Embed, atom.Svg, atom.Canvas, atom.Audio, atom.Video,
		atom.Input, atom.Select, atom.Button, atom.Textarea, atom.Meta, atom.Link, atom.Base:
		return true
	}
	if isHidden(n) {
		t.removed++
		return true
	}
	return false
}

// isHidden reports whether an element's own attributes hide it. It ignores style
// sheets.
func isHidden(n *html.Node) bool {
	for _, a := range n.Attr {
		switch strings.ToLower(a.Key) {
		case "hidden":
			return !strings.EqualFold(a.Val, "until-found")
		case "style":
			style := strings.ToLower(strings.Join(strings.Fields(a.Val), ""))
			for _, s := range []string{"display:none", "visibility:hidden", "opacity:0;", "font-size:0;", "font-size:0px"} {
				if strings.Contains(style+";", s) {
					return true
				}
			}
		}
	}
	return false
}

// trimAttributes keeps the attributes that the conversion reads, and makes links
// absolute.
func (t *trimmer) trimAttributes(n *html.Node) {
	kept := n.Attr[:0]
	for _, a := range n.Attr {
		switch a.Key {
		case "href", "src":
			a.Val = t.resolveLink(a.Val)
		case "colspan", "rowspan":
			if span, err := strconv.Atoi(a.Val); err != nil || span < 1 || span > maxSpan {
				continue
			}
		case "start":
			if _, err := strconv.ParseUint(a.Val, 10, 24); err != nil {
				continue
			}
		case "alt", "title", "class", "align", "role", "type", "checked":
			if len(a.Val) > maxLinkBytes {
				continue
			}
		default:
			continue
		}
		kept = append(kept, a)
	}
	n.Attr = kept
}

// resolveLink resolves a link against the page's URL. It keeps only the scheme of a
// link that is neither a web nor a mail address: data: URLs may be megabytes long,
// and javascript: URLs are useless.
func (t *trimmer) resolveLink(ref string) string {
	u, err := url.Parse(strings.TrimSpace(ref))
	if err != nil || len(ref) > maxLinkBytes {
		return "#"
	}
	if u.IsAbs() && u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "mailto" {
		return u.Scheme + ":"
	}
	return t.base.ResolveReference(u).String()
}
