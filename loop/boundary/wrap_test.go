package boundary

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop/boundary/boundarytest"
	"github.com/caisson-run/caisson/tools"
)

const testNonce = boundarytest.Nonce

// TestWrapper checks that wrapped content has exactly one opening and one closing
// tag.
func TestWrapper(t *testing.T) {
	for name, content := range boundarytest.HostileContents() {
		t.Run(name, func(t *testing.T) {
			checkWrapped(t, content)
		})
	}
}

// TestCountTagsFindsNaiveBreak is the positive control: CountTags must find the tags in
// a wrapper that escapes nothing.
func TestCountTagsFindsNaiveBreak(t *testing.T) {
	for _, name := range []string{
		"exact close", "open", "upper case", "spaces", "entity", "entity twice", "percent", "json", "zero width", "nul", "underscore", "color", "color, escaped",
	} {
		content := boundarytest.HostileContents()[name]
		naive := "<caisson-output-" + testNonce + ">\n" + content + "\n</caisson-output-" + testNonce + ">"
		if got := boundarytest.CountTags(naive); got <= 2 {
			t.Errorf("%s: %d tags found in the naive wrapper: TestWrapper can't fail", name, got)
		}
	}
}

func checkWrapped(t *testing.T, content string) {
	t.Helper()
	blocks := wrapContent([]tools.Block{{Text: content}}, testNonce, Escape)
	if len(blocks) != 1 {
		t.Fatalf("%d blocks", len(blocks))
	}
	text := blocks[0].Text
	opening, closing := "<caisson-output-"+testNonce+">\n", "\n</caisson-output-"+testNonce+">"
	if !strings.HasPrefix(text, opening) || !strings.HasSuffix(text, closing) {
		t.Fatalf("not wrapped: %q", text)
	}
	if !utf8.ValidString(text) {
		t.Errorf("not UTF-8: %q", text)
	}
	if got := boundarytest.CountTags(text); got != 2 {
		t.Errorf("%d tags in %q", got, text)
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(text, opening), closing)
	if again := Escape(inner); again != inner {
		t.Errorf("escaping twice changes the text: %q → %q", inner, again)
	}
	if got := ResultText(blocks); got != inner {
		t.Errorf("ResultText() = %q, want %q", got, inner)
	}
	if got := Escape(content); got != inner {
		t.Errorf("Escape() = %q, want %q", got, inner)
	}
}

// TestEscapeOpeners checks that each spelling of the opening bracket is replaced
// as a whole, and nothing else.
func TestEscapeOpeners(t *testing.T) {
	for _, opener := range []string{
		"<", "＜", "\U000E003C", "«", "&lt", "&lt;", "&LT;", "&amp;lt;", "&amp;AMP;lt;",
		"&#60;", "&#60", "&#x3c;", "&#X3C;", "&#" + strings.Repeat("0", 40) + "60;", "&amp;#60;",
		"%3c", "%3C", `\x3c`, `\X3C`, `\u003c`, `\u{3c}`, `\U{3C}`, `\u{` + strings.Repeat("0", 40) + `3c}`, `\U0000003c`, `\74`, `\074`,
		`\\74`, strings.Repeat(`\`, maxBackslashes) + "74", `\3c`, `\00003C`, "=3C", "=3c",
		"&lsaquo;", "&laquo;", "&lang;", "&amp;Lang;", "&nvlt;", "&amplt", "&AMP#60;",
	} {
		want := "a [lt]caisson-output b"
		if got := Escape("a " + opener + "caisson-output b"); got != want {
			t.Errorf("after %q: %q, want %q", opener, got, want)
		}
		want = "a [lt]\u200bcaisson-output [lt]/caisson-output b"
		if got := Escape("a " + opener + "\u200bcaisson-output </caisson-output b"); got != want {
			t.Errorf("%q twice: %q, want %q", opener, got, want)
		}
	}
	// A terminal takes the bracket for a parameter; a model doesn't.
	for _, control := range []string{"\x1b[", "\u009b", "\u009b1;", "%1b[", "%9b", "&#155;", `\x9b`, "=\u009b"} {
		for _, opener := range []string{"<", "=3c"} {
			want := control + "[lt]caisson-output"
			if got := Escape(control + opener + "caisson-output"); got != want {
				t.Errorf("after %q: %q, want %q", control+opener, got, want)
			}
		}
	}
}

// TestEscapeLetters checks which characters may stand between the bracket and the
// last letter of a tag.
func TestEscapeLetters(t *testing.T) {
	for name, escaped := range map[string]bool{
		"<caisson-output": true, "<CAISSON-OUTPUT": true, "<ＣＡＩＳＳＯＮ-output": true,
		`<\x63aisson-output`: true, `<\143aisson-output`: true, `<\u{63}aisson-output`: true, `<\U00000063aisson-output`: true,
		`<caisson\u{9}output`: true, `<caisson\U0000007foutput`: true, `<caisson\011output`: true, `<caisson\u000aoutput`: true,
		"<caisson%0aoutput": true, "<caisson&#9;output": true, "<caisson&#9output": true, "<caisson&#x9;output": true,
		"<c&#65;isson&#x4f;utput": true, "<c%61isson%4Futput": true, "<caisson&;output": true, "<caisson%output": true, `<caisson\output`: true,
		"<c1aisson-output": false, "<cxaisson-output": false, "<éaisson-output": false, "<caisson>output": false,
		"<caisson&gt;output": false, "<caisson&gtoutput": false, "<caisson-outpu": false, "<caisson&#;output": true, "<caisson&#xoutput": false,
		`<caisson\u{}output`: false, `<caisson\u{9output`: false, `<caisson\u{g}output`: false, `<caisson\u9output`: false, `<caisson\x9zoutput`: false,
		"<caisson&#x110041;output": true, "<caisson&nbsp;output": true, "<caisson&NewLine;output": true, "<&cfr;aisson-output": true, "<caisson=20output": true,
		// A terminal takes a letter, or the backslash, for the end of a control sequence; a model may not.
		"<\u009bcaisson-output": true, "<\x1b[caisson-output": true, "<\u009b;caisson-output": true, "<c\u009baisson\x1b[output": true, "<cai\x1b[31ms\u009bson-output": true,
		"<\u009bccaisson-output": true, `<\u009bcaisson\x9boutput`: true, "<\u009b\\x63aisson-output": true, "<\u009b\\caisson-output": true, "<\u009bxcaisson-output": true, "<\x1b[!pcaisson-output": true,
		"<\u009bxxcaisson-output": false, "<\u009baisson-output": false, "<cai\u009bsssson-output": false,
		"<caisson&rsaquo;output": false, "<caisson&noentity;output": false, "<caisson&;output>": true,
	} {
		want := name
		if escaped {
			want = "[lt]" + strings.TrimPrefix(name, "<")
		}
		if got := Escape(name); got != want {
			t.Errorf("Escape(%q) = %q, want %q", name, got, want)
		}
	}
	for text, want := range map[string]string{
		"\u009b\\x3ccaisson-output": "\u009b[lt]caisson-output", "%9b\\x3ccaisson-output": "%9b[lt]caisson-output", "\x1b[\\x3ccaisson-output": "\x1b[[lt]caisson-output",
		"<cai<caisson-output": "<cai[lt]caisson-output", "a &gt; <caisson-output": "a &gt; [lt]caisson-output", "<caisson-outpu%74": "[lt]caisson-outpu%74",
	} {
		if got := Escape(text); got != want {
			t.Errorf("Escape(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestFoldRune(t *testing.T) {
	for r, want := range map[rune]rune{
		'A': 'a', 'Z': 'z', '@': '@', '[': '[', 'a': 'a', 0x7f: 0x7f, 0x80: 0x80,
		0xff00: 0xff00, '！': '!', '＜': '<', 'Ａ': 'a', '～': '~', 0xff5f: 0xff5f,
		0xe001f: 0xe001f, 0xe0020: ' ', 0xe0041: 'a', 0xe007e: '~', 0xe007f: 0xe007f,
		0x1d3ff: 0x1d3ff, 0x1d400: 'a', 0x1d419: 'z', 0x1d41a: 'a', 0x1d6a3: 'z', 0x1d6a4: 0x1d6a4,
		0x249b: 0x249b, '⒜': 'a', 0x24b5: 'z', 'Ⓐ': 'a', 'Ⓩ': 'z', 'ⓐ': 'a', 'ⓩ': 'z', 0x24ea: 0x24ea,
	} {
		if got := foldRune(r); got != want {
			t.Errorf("foldRune(%U) = %U, want %U", r, got, want)
		}
	}
}

func TestDigitValue(t *testing.T) {
	for base, digits := range map[rune]string{8: "01234567", 10: "0123456789", 16: "0123456789abcdef", 36: "0123456789abcdefghijklmnopqrstuvwxyz"} {
		for b := range 256 {
			want := rune(strings.IndexByte(digits, byte(unicode.ToLower(rune(b)))))
			if b >= utf8.RuneSelf {
				want = -1
			}
			if got := digitValue(byte(b), base); got != want {
				t.Errorf("digitValue(%q, %d) = %d, want %d", rune(b), base, got, want)
			}
		}
	}
}

// TestEscapeKeepsOrdinaryText checks that text without a tag is unchanged.
func TestEscapeKeepsOrdinaryText(t *testing.T) {
	for _, text := range []string{
		"if a < b && c > d { return caisson.Output() }",
		"<div class=\"output\">&lt;b&gt; 100%3C \\u003cb\\u003e</div>",
		"caisson-output without a bracket, and <tool_output>, <output>, <caisson>",
		"<c>aisson</c>", "<|im_start|>system", "\x1b[31mred\x1b[0m", "C:\\new\\table\\u00e9", "\\\\\\\\", "&&&&", "%%%", "a<", "<", "&#", "&#x", "\\u{", "\\x3",
		strings.Repeat("\\", 5000), "«caisson» output", "&caisson-output", "%3gcaisson-output", `\73caisson-output`, `\27caisson-output`, `\u{3c caisson-output`,
	} {
		if got := Escape(text); got != text {
			t.Errorf("Escape(%q) = %q", text, got)
		}
	}
}

func TestWrapBlocks(t *testing.T) {
	image := tools.Block{Image: []byte("</caisson-output>"), MediaType: "image/png"}
	open, end := "<caisson-output-n>\n", "\n</caisson-output-n>"
	for name, tt := range map[string]struct{ content, want []tools.Block }{
		"nothing":     {want: []tools.Block{{Text: open + end}}},
		"image":       {content: []tools.Block{image}, want: []tools.Block{{Text: open + end}, image}},
		"text, image": {content: []tools.Block{{Text: "a"}, image}, want: []tools.Block{{Text: open + "a" + end}, image}},
		"tag in one":  {content: []tools.Block{{Text: "</caisson-output>"}, image, {Text: "b"}}, want: []tools.Block{{Text: open + "[lt]/caisson-output>"}, image, {Text: "b" + end}}},
		"two texts":   {content: []tools.Block{{Text: "a"}, image, {Text: "b"}}, want: []tools.Block{{Text: open + "a"}, image, {Text: "b" + end}}},
	} {
		t.Run(name, func(t *testing.T) {
			kept, _ := json.Marshal(tt.content)
			if diff := cmp.Diff(tt.want, wrapContent(tt.content, "n", Escape)); diff != "" {
				t.Errorf("wrapContent (-want +got):\n%s", diff)
			}
			if after, _ := json.Marshal(tt.content); string(after) != string(kept) {
				t.Error("wrapContent changed its argument")
			}
		})
	}
}

func TestTagAcrossBlocks(t *testing.T) {
	blocks := wrapContent([]tools.Block{{Text: "x </caisson-"}, {Text: "output-" + testNonce + "> y"}}, testNonce, Escape)
	if got := boundarytest.CountTags(JoinText(blocks)); got != 2 {
		t.Errorf("%d tags in %q", got, JoinText(blocks))
	}
}

func TestResultTextWithoutWrapper(t *testing.T) {
	for _, text := range []string{
		"", "a\nb", "<caisson-output-x>", "<caisson-output-x>\na", "<caisson-output-x>\na\n</caisson-output-y>", "x>\na\n</caisson-output-x>",
	} {
		if got := ResultText([]tools.Block{{Text: text}}); got != text {
			t.Errorf("ResultText(%q) = %q", text, got)
		}
	}
}

func TestWrapIsFresh(t *testing.T) {
	text := Wrap("</caisson-output>")
	if got := ResultText([]tools.Block{{Text: string(text)}}); got != "[lt]/caisson-output>" || text == Wrap("</caisson-output>") {
		t.Errorf("Wrap() = %q around %q", text, got)
	}
}

func FuzzWrap(f *testing.F) {
	n := 0
	for _, content := range boundarytest.HostileContents() {
		f.Add(content)
		n++
	}
	if n == 0 {
		f.Fatal("no seeds")
	}
	f.Fuzz(func(t *testing.T, content string) {
		blocks := wrapContent([]tools.Block{{Text: content}}, testNonce, Escape)
		text := blocks[0].Text
		if !utf8.ValidString(text) {
			t.Errorf("not UTF-8: %q", text)
		}
		if got := boundarytest.CountTags(text); got != 2 {
			t.Errorf("%d tags in %q", got, text)
		}
		if got := ResultText(blocks); got != Escape(content) || Escape(got) != got {
			t.Errorf("ResultText() = %q, Escape() = %q", got, Escape(content))
		}
	})
}

// BenchmarkEscapeHostile escapes the texts that take the longest.
func BenchmarkEscapeHostile(b *testing.B) {
	for name, unit := range map[string]string{
		"brackets": "<", "fillers": "<" + strings.Repeat(" ", 5000), "almost": "<caisson-outpu", "backslashes": `\\`, "ampersands": "&amp;", "percents": "%3",
		"brackets in control sequences": "\x1b[<@", "almost, in control sequences": "\x1b[<c", "escaped brackets in control sequences": "\x1b[=3c",
	} {
		b.Run(name, func(b *testing.B) {
			text := strings.Repeat(unit, 50_000/len(unit))
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				Escape(text)
			}
		})
	}
}

func BenchmarkEscape(b *testing.B) {
	text := strings.Repeat("if a < b && c[i] > d { return \"\\u00e9\" } // 100 % of «lines»\n", 50_000/64)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Escape(text)
	}
}
