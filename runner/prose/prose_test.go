package prose

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// flat returns blocks as text, with marks for kinds and styles.
func flat(blocks []Block) string {
	var b strings.Builder
	for _, block := range blocks {
		if block.Gap {
			b.WriteString("\n")
		}
		b.WriteString(block.First)
		switch block.Kind {
		case Heading:
			b.WriteString(strings.Repeat("#", block.Level) + " ")
		case Rule:
			b.WriteString("---")
		case Code:
			b.WriteString("CODE " + block.Language + "|" + strings.Join(block.Lines, "|"))
		case Table:
			fmt.Fprintf(&b, "TABLE %v", block.Right)
			for _, row := range block.Rows {
				b.WriteString("\n" + block.Rest)
				for _, c := range row {
					b.WriteString("|" + flatSpans(c, block.Rest))
				}
			}
		}
		b.WriteString(flatSpans(block.Spans, block.Rest))
		b.WriteString("\n")
	}
	return b.String()
}

func flatSpans(spans []Span, rest string) string {
	var b strings.Builder
	for _, s := range spans {
		switch {
		case s.Code:
			b.WriteString("{" + s.Text + "}")
		case s.Bold:
			b.WriteString("B(" + s.Text + ")")
		case s.Italic:
			b.WriteString("I(" + s.Text + ")")
		default:
			b.WriteString(strings.ReplaceAll(s.Text, "\n", "\n"+rest))
		}
	}
	return b.String()
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"paragraphs": {"a **b** *c* `d  e`\nf\n\ng", "a B(b) I(c) {d  e}\nf\n\ng\n"},
		"heading":    {"# A\ntext\n\nB\n---\n\n***\n", "# A\n\ntext\n\n## B\n\n---\n"},
		"lists":      {"- a\n  b\n- c\n  1. d\n  2. e\n\n- f", "- a\n  b\n- c\n  1. d\n  2. e\n\n- f\n"},
		"quote":      {"> a\n> b\n>\n> > c", "> a\n> b\n\n> > c\n"},
		"code":       {"run\n```sh -x\ngo test \\\n\t./... `x` <b>\n```\nand\n\n    indented\n", "run\n\nCODE sh -x|go test \\|\t./... `x` <b>\n\nand\n\nCODE |indented\n"},
		"item code":  {"1. ```\n   a\n   ```\n", "1. \nCODE |a\n"},
		"open fence": {"```\na\n", "CODE |a\n"},
		"links":      {`[a](http://b "c") <http://d> [http://e](http://e) ![f](http://g) [h][i] [j]`, "a (http://b c) http://d http://e image: f (http://g) [h][i] [j]\n"},
		"definition": {"[a]\n\n[a]: http://evil \"x\"\n", "[a]\n\n[a]: http://evil \"x\"\n"},
		"html":       {"a <b>c</b> <!-- d -->\n\n<script>\nalert(1)\n</script>\n\n<div>\n**x**\n", "a <b>c</b> <!-- d -->\n\n<script>\nalert(1)\n</script>\n\n<div>\n**x**\n"},
		"table":      {"| a | b |\n|---|--:|\n| *1* | `2` |\n|3|\n", "TABLE [false true]\n|a|b\n|I(1)|{2}\n|3|\n"},
		"cells":      {"a | b\n:-: | :-\n| # c \\| d | [e](http://f) \\* &#27;", "TABLE [false false]\n|a|b\n|# c | d|e (http://f) * \\x1b\n"},
		"item table": {"- x\n\n  a|b\n  -|-\n  1|2\n", "- x\n\n  TABLE [false false]\n  |a|b\n  |1|2\n"},
		"no tables":  {"a | b\n-|-\n1|2|3\n\na|b\n-\n\na|b\n-|-|-\n\na\n|-|\nb", "a | b\n-|-\n1|2|3\n\n## a|b\n\na|b\n-|-|-\n\na\n|-|\nb\n"},
		"escapes":    {`\*a\* &amp; &#27;[31m &lt;b&gt; &#x202e;`, "*a* & \\x1b[31m <b> \\u202e\n"},
		"hidden":     {"a\u202eb\x1b[31m\r `c\u200b` [d\x07](e\x1b)\n\n```\nf\u202e\n```", "a\\u202eb\\x1b[31m\\r {c\\u200b} d\\x07 (e\\x1b)\n\nCODE |f\\u202e\n"},
		"empty":      {"- \n", "- \n"},
		"none":       {"", ""},
	} {
		if diff := cmp.Diff(c.want, flat(Parse(c.text))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// costly returns texts that make parsers slow.
func costly(n int) map[string]string {
	return map[string]string{
		"brackets": strings.Repeat("[", n), "links": strings.Repeat("[a](", n/4), "images": strings.Repeat("![", n/2), "closers": strings.Repeat("]", n),
		"stars": strings.Repeat("*a ", n/3), "both": strings.Repeat("*a _", n/4), "underlines": strings.Repeat("_", n), "runs": strings.Repeat("**a *", n/5),
		"ticks": strings.Repeat("`a``b", n/5), "tick runs": tickRuns(n), "quotes": strings.Repeat(">", n), "quotes apart": strings.Repeat("> ", n/2),
		"lists": strings.Repeat("- ", n/2), "numbers": strings.Repeat("1. ", n/3), "tags": strings.Repeat("<a ", n/3), "comments": strings.Repeat("<!--", n/4),
		"entities": strings.Repeat("&", n), "backslashes": strings.Repeat(`\`, n), "blanks": strings.Repeat(" ", n), "lines": strings.Repeat("\n", n),
		"quoted lines": strings.Repeat(">\n", n/2), "items": strings.Repeat("-\n", n/2), "setext": strings.Repeat("a\n", n/2) + "===", "fences": strings.Repeat("```\n", n/4),
		"steps": steps(n), "declarations": strings.Repeat("<!A ", n/4), "instructions": strings.Repeat("<?", n/2), "autolinks": strings.Repeat("<a:", n/3),
		"columns": strings.Repeat("a|", n/8) + "\n" + strings.Repeat("-|", n/8) + "\n" + strings.Repeat("a\n", n/4), "rows": "a|b\n-|-\n" + strings.Repeat("a\n", n/2),
	}
}

func tickRuns(n int) string {
	var b strings.Builder
	for i := 1; b.Len() < n; i++ {
		b.WriteString(strings.Repeat("`", i) + "a")
	}
	return b.String()
}

// steps returns a list that is nested one level deeper in each line.
func steps(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		b.WriteString(strings.Repeat("  ", i) + "- a\n")
	}
	return b.String()
}

// Texts that make parsers slow come to an end, and what is too deep is still
// shown.
func TestParseIsBounded(t *testing.T) {
	for name, text := range costly(maxText) {
		if lost := findLost(text, Parse(text)); lost != "" {
			t.Errorf("%s: %s", name, lost)
		}
	}
	for _, text := range []string{strings.Repeat("> ", 50) + "found", strings.Repeat("- ", 50) + "found", strings.Repeat("> ", 300) + "found"} {
		if got := flat(Parse(text)); !strings.Contains(got, "found") {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
}

// findLost returns the letters of a text that are not shown, or not in order.
// References and escapes stand for other characters.
func findLost(text string, blocks []Block) string {
	shown := flat(blocks)
	for i, r := range text {
		if !unicode.IsLetter(r) || r == unicode.ReplacementChar {
			continue
		}
		at := strings.IndexRune(shown, r)
		if at < 0 {
			return fmt.Sprintf("%q and what follows", text[i:min(len(text), i+20)])
		}
		shown = shown[at+len(string(r)):]
	}
	return ""
}

func FuzzParse(f *testing.F) {
	for _, text := range costly(100) {
		f.Add(text)
	}
	f.Add("# a\n> - b `c` [d](e \"f\") ![g](h)\n\n```go\ni\n```\n<j>&amp;\\*")
	f.Fuzz(func(t *testing.T, text string) {
		blocks := Parse(text)
		checkHTML(t, text, HTML(blocks, escapes))
		if !strings.ContainsAny(text, "&\\") && utf8.ValidString(text) && !hasHidden(text) {
			if lost := findLost(text, blocks); lost != "" {
				t.Errorf("of %q is lost: %s", text, lost)
			}
		}
		for _, b := range blocks {
			all := append([]string{b.First, b.Rest, b.Language}, b.Lines...)
			for _, s := range slices.Concat(append([][]Span{b.Spans}, asSpans(b.Rows)...)...) {
				all = append(all, s.Text)
			}
			for _, s := range all {
				for _, r := range s {
					if r != '\n' && r != '\t' && (!unicode.IsGraphic(r) || unicode.Is(unicode.Cf, r)) {
						t.Errorf("%q is shown of %q", r, text)
					}
				}
			}
		}
	})
}

func asSpans(rows [][]Cell) [][]Span {
	var all [][]Span
	for _, row := range rows {
		for _, c := range row {
			all = append(all, c)
		}
	}
	return all
}

var htmlTags = regexp.MustCompile(`</?(p|h[3-6]|pre|code|strong|em|table|tr|th|td|ul|li|blockquote)>|<ol start="[0-9]+">|</ol>|<hr>|<br>`)

// checkHTML returns the elements of a text in order, and fails the test unless
// they are ours and each ends where it should.
func checkHTML(t *testing.T, from, text string) {
	t.Helper()
	if rest := htmlTags.ReplaceAllString(text, ""); strings.ContainsAny(rest, "<>\"") {
		t.Errorf("of %q becomes %q", from, text)
	}
	var open []string
	for _, tag := range htmlTags.FindAllString(text, -1) {
		name := strings.Fields(strings.Trim(tag, "</>"))[0]
		switch {
		case name == "br" || name == "hr":
		case strings.HasPrefix(tag, "</"):
			if len(open) == 0 || open[len(open)-1] != name {
				t.Fatalf("%s ends %q in %q", tag, open, text)
			}
			open = open[:len(open)-1]
		default:
			open = append(open, name)
		}
	}
	if len(open) > 0 {
		t.Errorf("%q are open at the end of %q", open, text)
	}
}

var escapes = Escapes{Text: html.EscapeString, Code: html.EscapeString}

func TestHTML(t *testing.T) {
	for text, want := range map[string]string{
		"# A\na **b *c*** `d<` [e](f)\ng": "<h3>A</h3>\n<p>a <strong>b </strong><strong><em>c</em></strong> <code>d&lt;</code> e (f)<br>\ng</p>\n",
		"- a\n- b\n  1. c\n  2. d\n\n     e\n- f\n\ng": "<ul>\n<li><p>a</p>\n</li>\n<li><p>b</p>\n<ol start=\"1\">\n<li><p>c</p>\n</li>\n<li><p>d</p>\n<p>e</p>\n</li>\n</ol>\n" +
			"</li>\n<li><p>f</p>\n</li>\n</ul>\n<p>g</p>\n",
		"**a[b](c)** GH-[1](2)":                       "<p><strong>ab (c)</strong> GH-1 (2)</p>\n",
		"> a\n>\n> - b\n\nc":                          "<blockquote>\n<p>a</p>\n<ul>\n<li><p>b</p>\n</li>\n</ul>\n</blockquote>\n<p>c</p>\n",
		"3. a\n   ```\n   <b>\n\n   ```\n4. c\n\n---": "<ol start=\"3\">\n<li><p>a</p>\n</li>\n</ol>\n\n<pre>&lt;b&gt;\n</pre>\n<ol start=\"4\">\n<li><p>c</p>\n</li>\n</ol>\n<hr>\n",
		"a|b\n-|-\n1|`<`":                             "<table>\n<tr><th>a</th><th>b</th></tr>\n<tr><td>1</td><td><code>&lt;</code></td></tr>\n</table>\n",
	} {
		got := HTML(Parse(text), escapes)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got)\n%s", text, diff)
		}
		checkHTML(t, text, got)
	}
	for name, text := range costly(10_000) {
		checkHTML(t, name, HTML(Parse(text), escapes))
	}
}

func hasHidden(text string) bool { return safeLines(text) != text }
