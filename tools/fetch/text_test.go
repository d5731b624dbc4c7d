package fetch

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/unicode"

	"github.com/caisson-run/caisson/tools"
)

func htmlPage(body string) Response {
	return Response{URL: "https://docs.example.com/guide/a", Status: 200, MediaType: "text/html", Body: []byte(body)}
}

func TestMarkdown(t *testing.T) {
	p, err := newPage(htmlPage(`<!doctype html><html><head><title> The  guide </title><style>p{}</style><script>alert("no")</script></head><body>
<h2>Install</h2><p>Run <code>make</code>, see <a href="../b?x=1">the <b>other</b> page</a>, <a href="javascript:evil()">this</a> and <a href="//o.example/">that</a>.</p>
<ul><li>one</li><li>two</li></ul><pre><code class="language-go">x := 1
y := 2</code></pre>
<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>
<img src="data:image/png;base64,AAAA" alt="a picture"><noscript>plain</noscript></body></html>`), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# The guide", "## Install", "`make`", "https://docs.example.com/b?x=1", "https://o.example/", "- one\n- two", "```go\nx := 1\ny := 2\n```", "| 1 | 2 |", "a picture",
	} {
		if !strings.Contains(p.text, want) {
			t.Errorf("%q is missing in:\n%s", want, p.text)
		}
	}
	for _, no := range []string{"alert", "evil", "p{}", "AAAA"} {
		if strings.Contains(p.text, no) {
			t.Errorf("%q is in:\n%s", no, p.text)
		}
	}
	raw, err := newPage(htmlPage("<p>x</p>"), true)
	if err != nil || raw.text != "<p>x</p>" {
		t.Errorf("raw: %q, %v", raw.text, err)
	}
}

// TestHidden is the part of acceptance case 68 about hidden text.
func TestHidden(t *testing.T) {
	p, err := newPage(htmlPage(`<p>seen</p><!-- HIDDEN1 --><div style="color:red; DISPLAY : none">HIDDEN2</div><div hidden>HIDDEN3</div>
<span style="visibility:hidden">HIDDEN4</span><template>HIDDEN5</template><p style="font-size:0">HIDDEN6</p><svg><text>HIDDEN7</text></svg>
<iframe srcdoc="HIDDEN8"></iframe><p style="opacity:0">HIDDEN9</p><textarea>HIDDEN10</textarea><p style="opacity:0.5">also seen</p>`), false)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(p.text, "HIDDEN") || !strings.Contains(p.text, "also seen") {
		t.Errorf("%s", p.text)
	}
	if len(p.notes) != 1 || !strings.Contains(p.notes[0], "5 hidden elements") {
		t.Errorf("notes %q", p.notes)
	}
	tags := ""
	for _, r := range "ignore" {
		tags += string(0xe0000 + r)
	}
	p, err = newPage(Response{MediaType: "text/plain", Body: []byte("a\x1b[2Jb\u202ec\u200bd" + tags + "e\u0007f\u009bg\U000e0101h\r\ni\rj 👨‍👩‍👧")}, false)
	if err != nil || p.text != "a[2Jbcdefgh\nij 👨‍👩‍👧" || len(p.notes) != 1 {
		t.Errorf("%q, %q, %v", p.text, p.notes, err)
	}
	p, err = newPage(Response{MediaType: "text/plain", Body: []byte("❤\ufe0f\u200d🔥 a\u200d\u200b\u200c\ufe0f\u200db\ufe0f\ufe0f \u200cc")}, false)
	if err != nil || p.text != "❤\ufe0f\u200d🔥 a\u200db\ufe0f c" || len(p.notes) != 1 || !strings.HasPrefix(p.notes[0], "6 invisible") {
		t.Errorf("joiners: %q, %q, %v", p.text, p.notes, err)
	}
}

// TestCharsets is the part of case 68 about charsets and wrong types.
func TestCharsets(t *testing.T) {
	sjis, _ := japanese.ShiftJIS.NewEncoder().String("日本語のテキスト")
	wide, _ := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String("wide ü")
	for name, tt := range map[string]struct {
		r    Response
		want string // "!" and a reason, or the text
	}{
		"utf-8":               {Response{MediaType: "text/plain", Body: []byte("ü")}, "ü"},
		"byte order mark":     {Response{MediaType: "text/plain", Body: []byte("\ufeffü")}, "ü"},
		"declared":            {Response{MediaType: "text/plain", Charset: "shift_jis", Body: []byte(sjis)}, "日本語のテキスト"},
		"meta":                {htmlPage("<meta charset=shift_jis><p>" + sjis), "日本語のテキスト"},
		"utf-16":              {Response{MediaType: "text/plain", Body: []byte(wide)}, "wide ü"},
		"latin":               {Response{MediaType: "text/plain", Body: []byte("caf\xe9")}, "café"},
		"unknown name":        {Response{MediaType: "text/plain", Charset: "x-nonsense", Body: []byte("ü")}, "ü"},
		"utf-7 is none":       {Response{MediaType: "text/plain", Charset: "utf-7", Body: []byte("+ADw-script")}, "+ADw-script"},
		"replacement":         {Response{MediaType: "text/plain", Charset: "hz-gb-2312", Body: []byte("~{<script")}, "!content_type"},
		"json is utf-8":       {Response{MediaType: "application/json", Charset: "utf-16", Body: []byte(`{"a":"ü"}`)}, `{"a":"ü"}`},
		"broken utf-8":        {Response{MediaType: "text/plain", Charset: "utf-8", Body: []byte("long enough a text \xff")}, "long enough a text \ufffd"},
		"a picture as text":   {Response{MediaType: "text/plain", Body: append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"), bytes.Repeat([]byte{0, 1, 2}, 100)...)}, "!content_type"},
		"a program, untyped":  {Response{Body: []byte("\x7fELF\x02\x01\x01\x00\x00\x00")}, "!content_type"},
		"html without a type": {Response{URL: "http://x/", Body: []byte("<!DOCTYPE html><p>x")}, "x"},
		"text without a type": {Response{Body: []byte("<p>x")}, "<p>x"},
		"html as plain text":  {Response{MediaType: "text/plain", Body: []byte("<script>x</script>")}, "<script>x</script>"},
		"empty":               {Response{MediaType: "text/html", URL: "http://x/"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newPage(tt.r, false)
			got := strings.TrimSpace(p.text)
			if err != nil {
				got = "!" + reasonOf(err)
			}
			if got != tt.want {
				t.Errorf("%q (%v), want %q", got, err, tt.want)
			}
		})
	}
}

func TestReadable(t *testing.T) {
	for kind, want := range map[string]bool{
		"": true, "text/html": true, "text/x-anything": true, "application/json": true, "application/vnd.api+json": true, "application/atom+xml": true,
		"image/svg+xml": true, "image/png": false, "application/octet-stream": false, "application/pdf": false, "application/zip": false,
		"video/mp4": false, "multipart/mixed": false, "application/x-msdownload": false,
	} {
		if isReadableType(kind) != want {
			t.Errorf("%q is readable: %v, want %v", kind, !want, want)
		}
	}
}

// TestHTMLBombs checks small pages that are expensive to convert: the memory of
// the conversion is limited, and it returns a page or a failure.
func TestHTMLBombs(t *testing.T) {
	few := 1
	if raceEnabled {
		few = 20 // what it costs is measured without
	}
	many := func(n int, s string) string { return strings.Repeat(s, n) }
	var attributes strings.Builder
	for i := range 400 {
		fmt.Fprintf(&attributes, "<b a%d>", i)
	}
	attributes.WriteString(many(20_000/few, "<p>x</p>"))
	for i := range 20_000 / few {
		fmt.Fprintf(&attributes, "<b a%d>x<p>", i)
	}
	for name, text := range map[string]string{
		"too deep":          many(100_000, "<div>"),
		"deep":              many(500, "<div>") + many(20_000/few, "a<br>"),
		"deep quotations":   many(490, "<blockquote>") + many(20_000/few, "a<br>"),
		"deep lists":        many(240, "<ul><li>") + many(20_000/few, "a<br>"),
		"wide table":        "<table><tr>" + many(20_000/few, `<td colspan=1000 rowspan=65534>x`) + "</table>",
		"tables":            many(120, "<table><tr><td>") + many(50_000, "x "),
		"links":             many(20_000/few, `<a href="/x">link</a> `),
		"formatting":        attributes.String(),
		"entities":          many(200_000/few, "&nbsp;&lt;"),
		"long attribute":    `<a href="` + many(1<<20, "a") + `">x</a>`,
		"unclosed comments": many(200_000, "<!--"),
		"text nodes":        many(110_000, "a<br>"),
		"stars":             many((1<<17)/few, "*_"),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			p, err := newPage(htmlPage(text), false)
			runtime.ReadMemStats(&after)
			t.Logf("%d KiB in %v, %d MiB allocated: %d KiB, %v", len(text)>>10, time.Since(start).Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, len(p.text)>>10, err)
			if got := reasonOf(err); got != "" && got != "html" {
				t.Errorf("%v", err)
			}
			if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 120 {
				t.Errorf("%d MiB allocated", grown)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	text := "first line\nsecond line\nthird ünd last"
	var all strings.Builder
	for at := 0; at < len(text); {
		from, to := selectWindow(text, at, 15, 100)
		if from != at || to <= from || !utf8.ValidString(text[from:to]) {
			t.Fatalf("window at %d is %d to %d", at, from, to)
		}
		all.WriteString(text[from:to])
		at = to
	}
	if all.String() != text {
		t.Errorf("pages are %q", all.String())
	}
	for _, tt := range []struct{ offset, limit, from, to int }{
		{0, 0, 0, len(text)}, {1000, 5, len(text), len(text)}, {-5, 3, 0, 3}, {30, 1, 31, 32}, {29, 1, 29, 31}, {0, 13, 0, 11},
	} {
		if from, to := selectWindow(text, tt.offset, tt.limit, 100); from != tt.from || to != tt.to {
			t.Errorf("window %d, %d is %d to %d, want %d to %d", tt.offset, tt.limit, from, to, tt.from, tt.to)
		}
	}
}

// TestTool checks the results for the model.
func TestTool(t *testing.T) {
	long := strings.Repeat("a line of text, thirty-two bytes\n", 5000)
	u := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		switch r.URL.Path {
		case "/long":
			_, _ = w.Write([]byte(long))
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte("no such page"))
		case "/pdf":
			w.Header().Set("Content-Type", "application/pdf")
			w.Header().Set("Content-Disposition", `attachment; filename="../../x"`)
			_, _ = w.Write([]byte("%PDF"))
		case "/type":
			w.Header().Set("Content-Type", "text/plain\u202e; charset=\"a\u202e\"")
			_, _ = w.Write([]byte("typed"))
		}
	})
	dir := t.TempDir()
	f := newLocalFixture(t, Options{Dir: dir}, u)
	body := func(input map[string]any) (string, tools.Output) {
		t.Helper()
		out, err := f.execute(input)
		if err != nil {
			t.Fatal(err)
		}
		return out.Content[0].Text, out
	}

	text, out := body(map[string]any{"url": u + "/long"})
	if !out.Success || !out.Truncated || len(text) > tools.DefaultResultBytes || !strings.HasPrefix(text, "url: "+u+"/long\nstatus: 200\ntype: text/plain\nbytes: 165000\nsha256: ") {
		t.Errorf("%v %v %d %.200q", out.Success, out.Truncated, len(text), text)
	}
	var got strings.Builder
	for offset := 0; ; {
		text, out := body(map[string]any{"url": u + "/long", "offset": offset})
		_, rest, _ := strings.Cut(text, "\n\n")
		end := strings.LastIndex(rest, "[bytes ")
		got.WriteString(rest[:end])
		if offset > 0 && out.Metadata["cached"] != true {
			t.Error("a second page asked the server again")
		}
		if !out.Truncated {
			break
		}
		offset = got.Len()
	}
	if got.String() != long {
		t.Errorf("the pages together are %d bytes, want %d", got.Len(), len(long))
	}

	text, out = body(map[string]any{"url": u + "/missing"})
	if out.Success || !strings.Contains(text, "status: 404\n") || !strings.Contains(text, "no such page") {
		t.Errorf("missing page: %v %q", out.Success, text)
	}
	text, _ = body(map[string]any{"url": u + "/type"})
	if strings.ContainsAny(text, "\x1b\u202e") || !strings.HasSuffix(text, "typed\n") {
		t.Errorf("a hostile type: %q", text)
	}
	for path, want := range map[string]struct {
		class  tools.ErrorClass
		reason string
	}{
		u + "/pdf":               {tools.ErrorExecution, "content_type"},
		"http://other.invalid/":  {tools.ErrorPermissionDenied, "not_allowed"},
		"http://169.254.169.254": {tools.ErrorPermissionDenied, "not_allowed"},
	} {
		_, err := f.execute(map[string]any{"url": path})
		fail, ok := err.(*tools.Error) //nolint:errorlint // what the dispatcher is given
		if !ok || fail.Class != want.class || fail.Reason != want.reason || !fail.Visible || !strings.HasPrefix(fail.Message, "Not fetched: ") {
			t.Errorf("%s: %#v", path, err)
		}
	}
	def := newDefinition(f.opts)
	if !def.EnabledByDefault || def.Class != tools.ClassRead || def.Runs != tools.PlaceHost || !strings.Contains(def.Description, u) {
		t.Errorf("%+v", def)
	}
	if off := newDefinition(newLocalFixture(t, Options{}).opts); off.EnabledByDefault {
		t.Error("the tool is on without an allowlist")
	}
}

// FuzzRead checks that any response becomes valid text without control sequences,
// or a failure.
func FuzzRead(f *testing.F) {
	f.Add("text/html", "", "<title>x</title><p hidden>y<table><td colspan=9>z")
	f.Add("", "shift_jis", "<!doctype html>\x1b[2J")
	f.Add("text/plain", "utf-16", "a\x00b\x00")
	f.Add("application/json", "", "{\"a\":1}")
	f.Fuzz(func(t *testing.T, kind, charset, body string) {
		p, err := newPage(Response{URL: "https://a.example/b", MediaType: kind, Charset: charset, Body: []byte(body)}, false)
		if err != nil {
			if reasonOf(err) == "" || strings.HasPrefix(reasonOf(err), "error: ") {
				t.Fatalf("%v is no failure", err)
			}
			return
		}
		if !utf8.ValidString(p.text) || strings.ContainsFunc(p.text, func(r rune) bool { return r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0) }) {
			t.Fatalf("%q", p.text)
		}
	})
}

// TestBracketsAreConvertedInOnePass converts 2 MiB of brackets, which would take
// the converter's own escaper 20 minutes. The page's own stand-in characters
// don't become brackets.
func TestBracketsAreConvertedInOnePass(t *testing.T) {
	p := &page{}
	got, err := p.convertHTML("<p>"+strings.Repeat("[", 2<<20), "http://example.com/")
	if err != nil || strings.Count(got, "[") != 2<<20 {
		t.Errorf("%d brackets, %v", strings.Count(got, "["), err)
	}
	deep := strings.Repeat("<div>", maxDepth+1) + "<code>" + strings.Repeat("[", 2<<20) + "</code>"
	got, err = p.convertHTML(deep, "http://example.com/")
	if err != nil || strings.Count(got, "[") != 2<<20 {
		t.Errorf("where the code loses its element: %d brackets, %v", strings.Count(got, "["), err)
	}
	for page, want := range map[string]string{
		"<title>a [b]</title><p>[x] <a href=/y>[1]</a> " + bracketStandIn + "<code>c[0](1)</code>": "# a [b]\n\n[x] [[1\\]](http://example.com/y) `c[0](1)`",
		"<pre>a[1](2)</pre>":                 "```\na[1](2)\n```",
		"<p>[click](http://evil.test/) x[1]": `\[click](http://evil.test/) x[1]`,
		"<p>[a][b] ![i](j)":                  `\[a][b] !\[i](j)`,
		"<p>[ref]: http://evil.test/":        `\[ref]: http://evil.test/`,
		"<p>[<b>a</b>](http://evil.test/)":   `\[**a**](http://evil.test/)`,
	} {
		if got, err := p.convertHTML(page, "http://example.com/"); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", page, got, err, want)
		}
	}
}
