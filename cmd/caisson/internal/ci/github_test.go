package ci

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ci/citest"
	"github.com/caisson-run/caisson/cmd/caisson/internal/junit"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// hostileReportTexts are texts of a model, program or file name that try to be more
// than text in a report.
var hostileReportTexts = []string{
	"\n::error::x\n##[error]x\r::set-output name=a::b\n##vso[task.setvariable variable=PATH]/evil\n",
	"x,file=/etc/passwd,line=1::owned\n::add-mask::e",
	"%0A::error::x%0D%3A%2C",
	"</code></pre><script>alert(1)</script><img src=x onerror=alert(1)>\n\n# Heading\n\n- [x](javascript:1) ![i](http://evil/p.png) <http://evil>\n",
	"`code` **bold** _it_ ~~no~~ | a | b |\n|---|---|\n@octocat #1 owner/repo#1 GH-1 :tada: http://evil.example www.evil.example a@b.c GH-[123](x) ww[w.evil.example](x)",
	"```\n</details>\n```\n&lt;b&gt; &#60;b&#62; &amp;#60; <!-- -->",
	"\u202egnp.exe\u200b\x1b]8;;http://evil\x07\x00\x9b31m",
	"\nEOF\nstatus<<EOF\n0\nEOF\nreason=answered\n",
	strings.Repeat("<&`*", 1<<14),
}

// fill sets every text below v, and makes lists of two.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		if v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), text)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			for i := range 2 {
				fill(v.Index(i), text)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() && v.Type().Field(i).Name != "Err" {
				fill(f, text)
			}
		}
	}
}

// filledReport returns a report whose texts are all text, with failed tests of it.
func filledReport(text string) runner.Report {
	var r runner.Report
	fill(reflect.ValueOf(&r).Elem(), text)
	r.Verification.Passed = false
	var tests strings.Builder
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", `"`, "&quot;", "\n", "&#10;", "\r", "&#13;")
	attr := escape.Replace(strings.Map(func(c rune) rune {
		if c < ' ' && c != '\n' && c != '\r' || c == 0x9b || c == 0xfffd {
			return -1
		}
		return c
	}, text))
	for range 30 {
		fmt.Fprintf(&tests, `<testcase classname="%s" name="%s" file="%s" line="7"><failure message="%s">%s</failure></testcase>`, attr, attr, attr, attr, attr)
	}
	r.VerifyFiles = []byte("<testsuite>" + tests.String() + "</testsuite>")
	return r
}

// reported reports r. It returns what a runner obeys, the summary and the outputs.
func reported(t *testing.T, r runner.Report) (obeyed []string, summary, outputs string) {
	t.Helper()
	dir := t.TempDir()
	var out, errs bytes.Buffer
	guard := New(environment("GITHUB_ACTIONS=true"), &out, &errs)
	g := NewGitHub(environment("GITHUB_STEP_SUMMARY="+filepath.Join(dir, "summary"), "GITHUB_OUTPUT="+filepath.Join(dir, "output"), "GITHUB_WORKSPACE="+dir), guard)
	g.Workspace, g.Target, g.Patch = dir, "/workspace", r.Dir
	_, _ = guard.Stdout().Write([]byte("half a line :"))
	_, _ = guard.Stderr().Write([]byte("half a line #"))
	if err := g.Report(r); err != nil {
		t.Fatal(err)
	}
	_, _ = guard.Stdout().Write([]byte("::error::late\n" + r.Answer))
	_, _ = guard.Stderr().Write([]byte("#[error]late\n" + r.Answer))
	guard.Close()
	var model citest.GitHub
	model.Read(errs.String())
	if model.Token != "" {
		t.Error("commands are left stopped")
	}
	obeyed = model.Obeyed
	var of citest.GitHub // a runner that saw no stops
	of.Read(out.String())
	obeyed = append(append(obeyed, of.Obeyed...), citest.Others(out.String()+errs.String())...)
	text, err := os.ReadFile(filepath.Join(dir, "summary"))
	if err != nil {
		t.Fatal(err)
	}
	values, err := os.ReadFile(filepath.Join(dir, "output"))
	if err != nil {
		t.Fatal(err)
	}
	return obeyed, string(text), string(values)
}

// parseOutputs reads a file of outputs like the runner (actions/runner:
// FileCommandManager.cs).
func parseOutputs(t *testing.T, text string) map[string]string {
	t.Helper()
	values := map[string]string{}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if lines[i] == "" {
			continue
		}
		name, end, heredoc := strings.Cut(lines[i], "<<")
		equals, value, simple := strings.Cut(lines[i], "=")
		switch {
		case simple && (!heredoc || len(equals) < len(name)):
			values[equals] = value
		case heredoc:
			from := i + 1
			for i++; i < len(lines) && lines[i] != end; i++ {
			}
			values[name] = strings.Join(lines[from:i], "\n")
		default:
			t.Errorf("the runner refuses the file at %q", lines[i])
		}
	}
	return values
}

var ourTags = regexp.MustCompile(`</?(code|pre|details|summary|p|h[3-6]|strong|em|table|tr|th|td|ul|li|blockquote)>|<ol start="[0-9]+">|</ol>|<hr>|<br>`)

// markup returns the tags and headings of a summary, and anything else that could be
// markup.
func markup(summary string) (tags []string, foreign string) {
	tags = ourTags.FindAllString(summary, -1)
	rest := regexp.MustCompile(`&#[0-9]+;`).ReplaceAllString(ourTags.ReplaceAllString(summary, ""), "")
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		for _, prefix := range []string{"## Caisson: ", "### ", "- "} {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				tags, line = append(tags, prefix), rest
				break
			}
		}
		// Our own texts have colons and commas between words.
		if i := strings.IndexAny(line, "<>&`*_[]()!#~|@\\/{}=+.\"'$%^"); i >= 0 && !strings.HasPrefix(line, "The rest does not fit") {
			foreign += line + "\n"
		}
	}
	return tags, foreign
}

// TestHostileReports: no text in a report is obeyed, set as an output or rendered. The
// control is the same texts unescaped.
func TestHostileReports(t *testing.T) {
	wanted, benign, _ := reported(t, filledReport("benign"))
	_, foreign := markup(benign)
	wantTags, _ := markup(regexp.MustCompile(`(?s)### Answer\n.*### Diff\n`).ReplaceAllString(benign, ""))
	if foreign != "" || len(wanted) != maxAnnotations+2 || len(wantTags) < 40 {
		t.Fatalf("benign: %d annotations, %d tags, foreign %q", len(wanted), len(wantTags), foreign)
	}
	for i, text := range hostileReportTexts {
		r := filledReport(text)
		obeyed, summary, outputs := reported(t, r)
		bad := slices.ContainsFunc(obeyed, func(line string) bool {
			return !strings.HasPrefix(line, "::error title=") && !strings.HasPrefix(line, "::warning title=")
		})
		if len(obeyed) != len(wanted) || bad {
			t.Errorf("text %d: the runner obeys %q", i, obeyed)
		}
		for _, line := range obeyed {
			properties, _, _ := strings.Cut(strings.TrimPrefix(line, "::"), "::")
			for property := range strings.SplitSeq(properties[strings.Index(properties, " ")+1:], ",") {
				name, value, _ := strings.Cut(property, "=")
				value = strings.NewReplacer("%25", "%", "%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",").Replace(value)
				if name != "title" && (name != "file" || value != text) && (name != "line" || value != "7") {
					t.Errorf("text %d: annotation with %s: %s", i, property, line)
				}
			}
		}
		_, foreign := markup(summary)
		before, answer, _ := strings.Cut(summary, "### Answer\n")
		answer, after, _ := strings.Cut(answer, "### Diff\n")
		tags, _ := markup(before + after)
		if foreign != "" || len(summary) > maxSummary || len(text) < 1000 && !slices.Equal(tags, wantTags) {
			t.Errorf("text %d: %d bytes of summary, %d tags instead of %d, foreign %q", i, len(summary), len(tags), len(wantTags), foreign)
		}
		// The answer's Markdown is rendered, but no word becomes a link.
		for word := range strings.FieldsSeq(regexp.MustCompile(`(?s)<(code|pre)>.*?</(code|pre)>|<[^>]*>`).ReplaceAllString(answer, " ")) {
			if plain := html.UnescapeString(word); strings.ContainsAny(plain, "@#:/") || strings.Contains(plain, "www.") || strings.HasPrefix(plain, "GH-") {
				t.Errorf("text %d: %q of the answer is not code", i, plain)
			}
		}
		if strings.ContainsAny(summary, "\x00\x1b\u202e\u200b\u009b\r") {
			t.Errorf("text %d: what is not seen is in the summary", i)
		}
		values := parseOutputs(t, outputs)
		want := map[string]string{"status": "0", "reason": text, "patch": text, "session": text, "cost": text}
		if !reflect.DeepEqual(values, want) {
			t.Errorf("text %d: outputs %q", i, values)
		}
		var control citest.GitHub
		control.Read(text)
		_, foreign = markup(text)
		if i < 2 && len(control.Obeyed)+len(citest.Others(text)) == 0 || i >= 3 && i < 6 && foreign == "" {
			t.Errorf("control: text %d means nothing where it is not escaped", i)
		}
	}
}

func TestSummaryShowsTheAnswer(t *testing.T) {
	r := runner.Report{SessionEnded: record.SessionEnded{Answer: "It **works**.\n\n- one `x=1`\n\n| a | b |\n|---|---|\n| 1 | see #12 |"}, Patch: "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n"}
	got := html.UnescapeString(renderSummary(r, 0, maxSummary))
	for _, want := range []string{
		"### Answer\n\n<p>It <strong>works</strong>.</p>\n<ul>\n<li><p>one <code>x=1</code></p>\n</li>\n</ul>\n",
		"<table>\n<tr><th>a</th><th>b</th></tr>\n<tr><td>1</td><td>see <code>#12</code></td></tr>\n</table>\n",
		"### Diff\n\n<details><summary>Show the diff</summary>\n\n<pre>--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new</pre>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the summary lacks %q:\n%s", want, got)
		}
	}
}

// TestSummaryTellsWhatIsLeft: what Caisson changed or couldn't, beside the agent's changes.
func TestSummaryTellsWhatIsLeft(t *testing.T) {
	r := runner.Report{SessionEnded: record.SessionEnded{
		Quarantined: []record.Quarantined{{Path: "x", Why: "busy"}, {Path: "y", To: "z", Why: "changed"}},
		Cleared:     []record.Cleared{{Path: "su", SetUID: true, Capabilities: true}, {Path: "kept", SetGID: true, Why: "read-only"}},
		Left:        []string{"a cgroup"},
		Overlay: &record.OverlayResult{
			Conflicts: []record.PathNote{{Path: "p", Why: "edited"}}, LeftOut: []record.PathNote{{Path: "q", Why: "a device"}}, Failed: []record.PathNote{{Path: "r", Why: "denied"}},
		},
	}}
	got := html.UnescapeString(renderSummary(r, 0, maxSummary))
	for _, want := range []string{
		"x was not renamed: busy", "y was renamed to z: changed", "a cgroup", "p: edited", "q: a device", "r: denied",
		"su had set-user-ID and capabilities, which it had not when the session began: cleared",
		"kept has set-group-ID, which it had not when the session began, and kept: read-only",
	} {
		if !strings.Contains(got, "<code>"+want+"</code>") {
			t.Errorf("the summary lacks %q:\n%s", want, got)
		}
	}
}

// TestAnnotations: failures of tests are shown at their place, and only in existing
// files.
func TestAnnotations(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"sub/store/cart_test.go", "sub/cart_test.go", "sub/tests/test_a.py"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &GitHub{Repository: dir, Workspace: filepath.Join(dir, "sub"), Target: "/workspace"}
	changed := []record.Changed{{Path: "new_test.go"}}
	for _, c := range []struct{ class, file, want string }{
		{"example.org/shop/store", "cart_test.go", "sub/store/cart_test.go"},
		{"example.org/shop", "cart_test.go", "sub/cart_test.go"},
		{"tests.test_a", "tests/test_a.py", "sub/tests/test_a.py"},
		{"", "/workspace/tests/test_a.py", "sub/tests/test_a.py"},
		{"", filepath.Join(dir, "sub/tests/test_a.py"), "sub/tests/test_a.py"},
		{"", "new_test.go", "sub/new_test.go"},
		{"", "absent.go", ""},
		{"", "../cart_test.go", ""},
		{"", "/etc/passwd", ""},
		{"..", "passwd", ""},
		{"", "tests/test_a.py\n", ""},
	} {
		if got := g.findFile(junit.Failure{Class: c.class, File: c.file}, changed); got != c.want {
			t.Errorf("%q in %q is %q, want %q", c.file, c.class, got, c.want)
		}
	}
	g.Repository = filepath.Join(dir, "elsewhere")
	if got := g.findFile(junit.Failure{File: "cart_test.go"}, nil); got != "" {
		t.Errorf("a file outside of the repository: %q", got)
	}
	if got, want := formatAnnotation("error", "a,b:c.go", 3, "50%, done", "Foo::bar\r\nx ##[error]y"), `::error title=50%25%2C done,file=a%2Cb%3Ac.go,line=3::Foo::bar\r%0Ax ##\u005berror]y`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestSummaryFits: a summary fits in the room that an earlier one leaves.
func TestSummaryFits(t *testing.T) {
	r := filledReport(strings.Repeat("*", 300))
	r.Reason, r.Answer = loop.StopAnswered, strings.Repeat("*", 1<<20)
	for _, room := range []int{0, 10, 100, 1000, 10_000, maxSummary} {
		if got := renderSummary(r, 1, room); len(got) > room || room >= 100 && got == "" {
			t.Errorf("%d bytes in %d", len(got), room)
		}
	}
	name := filepath.Join(t.TempDir(), "summary")
	if err := os.WriteFile(name, bytes.Repeat([]byte("x"), maxSummary-100), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := appendFile(name, maxSummary, func(room int) string { return renderSummary(r, 1, room) }); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Size() > maxSummary || info.Size() < maxSummary-100 {
		t.Errorf("%v, %v", info.Size(), err)
	}
	if err := appendFile(t.TempDir(), 1, func(int) string { return "" }); err == nil {
		t.Error("a directory is accepted")
	}
}

func TestRunCommandsElsewhere(t *testing.T) {
	var errs bytes.Buffer
	g := New(environment("TF_BUILD=True"), io.Discard, &errs)
	g.RunCommands([]string{"::error::x"})
	g.Close()
	g.RunCommands([]string{"::error::x"})
	if errs.Len() > 0 {
		t.Errorf("got %q", errs.String())
	}
}
