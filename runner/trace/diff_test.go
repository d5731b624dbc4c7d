package trace

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"
)

// gitPatch has one file of each kind that git and overlays write.
const gitPatch = `# conflict: cart.go: it changed in the workspace
diff --git a/cart.go b/cart.go
index 1..2 100644
--- a/cart.go
+++ b/cart.go
@@ -1,3 +1,3 @@ func f() {
 a
--- a/not-a-header
+++ b/not-a-header
 z
@@ -9 +9 @@
-x
\ No newline at end of file
+y
diff --git a/old name.go b/new.go
similarity index 90%
rename from old name.go
rename to new.go
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
diff --git "a/t\303\244g\n" "b/t\303\244g\n"
new file mode 100644
--- /dev/null
+++ "b/t\303\244g\n"
@@ -0,0 +1 @@
+1
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-1
diff --git a/logo.png b/logo.png
Binary files a/logo.png and b/logo.png differ
# video.mp4: modified, binary, 9 bytes: not shown here
# 3 more changes are left out: the diff would be too long
`

func TestParsePatch(t *testing.T) {
	summary := func(text string) (out []string) {
		for _, f := range ParsePatch(text) {
			out = append(out, fmt.Sprintf("%s %q from %q %q +%d -%d, %d lines", f.ID, f.Path, f.Old, f.Notes, f.Added, f.Deleted, len(f.Body())))
		}
		return out
	}
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"git": {gitPatch, []string{
			`file-1 "" from "" [] +0 -0, 1 lines`,
			`file-2 "cart.go" from "" [] +2 -2, 9 lines`,
			`file-3 "new.go" from "old name.go" ["renamed"] +0 -0, 0 lines`,
			`file-4 "run.sh" from "" ["mode 100755, was 100644"] +0 -0, 0 lines`,
			`file-5 "täg\n" from "" ["new"] +1 -0, 2 lines`,
			`file-6 "gone" from "" ["deleted"] +0 -1, 2 lines`,
			`file-7 "logo.png" from "" ["binary"] +0 -0, 0 lines`,
			`file-8 "" from "" [] +0 -0, 2 lines`,
		}},
		"tools": {"--- a/x y.go\t\n+++ b/x y.go\t\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ b/z\n@@ -0,0 +1 @@\n+c\n--- a/big\n+++ b/big\nToo large for a diff: 9 bytes before, 9 after.\n", []string{
			`file-1 "x y.go" from "" [] +1 -1, 3 lines`, `file-2 "z" from "" ["new"] +1 -0, 2 lines`, `file-3 "big" from "" [] +0 -0, 1 lines`,
		}},
		"cut":    {"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n a\n[… 9 bytes left out …]\n+b\n--- a/fake\n+++ b/fake\n c\n@@ -20 +20 @@\n-d\n+e\n", []string{`file-1 "x" from "" [] +3 -2, 10 lines`}},
		"memory": {"--- memory before\n+++ memory after\n@@ -1 +1 @@\n-a\n+b\n", []string{`file-1 "memory after" from "memory before" [] +1 -1, 3 lines`}},
		"moved":  {"rename from a.sh\nrename to b.sh\n--- a/b.sh\n+++ b/b.sh\n@@ -1 +1 @@\n-a\n+b\n", []string{`file-1 "b.sh" from "a.sh" ["renamed"] +1 -1, 3 lines`}},
		"none":   {"hello\n", []string{`file-1 "" from "" [] +0 -0, 1 lines`}},
		"empty":  {"", nil},
	} {
		if diff := cmp.Diff(test.want, summary(test.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What is left out of a long patch is counted.
func TestParsePatchIsBounded(t *testing.T) {
	files := ParsePatch("--- a/x\n+++ b/x\n@@ -0,0 +1,5000 @@\n" + strings.Repeat("+a\n", 5000))
	if f := files[0]; len(files) != 1 || len(f.Lines) != maxFileLines || f.Left != 5003-maxFileLines || f.Added != 5000 {
		t.Errorf("%d files, %d lines, %d left, +%d", len(files), len(f.Lines), f.Left, f.Added)
	}
	files = ParsePatch(strings.Repeat("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,5 @@\n-a\n"+strings.Repeat("+b\n", 5), 5000))
	lines, left := 0, 0
	for _, f := range files {
		lines += len(f.Lines)
		left += f.Left
	}
	if rest := files[maxDiffFiles]; len(files) != maxDiffFiles+1 || rest.Path != "" || len(rest.Lines) > 0 || lines+left != 50_000 || lines > maxDiffLines {
		t.Errorf("%d files, %d lines, %d left, the rest is %+v", len(files), lines, left, rest)
	}
}

func TestChangedWords(t *testing.T) {
	long := strings.Repeat("word ", maxWordBytes/5+1)
	for _, test := range []struct{ diff, want string }{
		{"-return c.items.Sum()\n+return c.items.Sum() - c.discount\n", "-return c.items.Sum()\n+return c.items.Sum() [- c.discount]\n"},
		{"-a := foo(1)\n+a := bar(1)\n", "-a := [foo](1)\n+a := [bar](1)\n"},
		// A new line among others is not marked as a whole.
		{"-one two three\n+one 2 three\n+four five\n", "-one [two] three\n+one [2] three\n+four five\n"},
		// Lines that differ altogether, that are only indented, or that are too long.
		{"-one two\n+three four\n", "-one two\n+three four\n"},
		{"-x one two three\n+x four five six\n", "-x one two three\n+x four five six\n"},
		{"-one two\n+\tone two\n", "-one two\n+\tone two\n"},
		{"-" + long + "1\n+" + long + "2\n", "-" + long + "1\n+" + long + "2\n"},
		{"-größer als\n+größer wie\n", "-größer [als]\n+größer [wie]\n"},
		{"-a\xff b\n+a\xfe b\n", "-a[\xff] b\n+a[\xfe] b\n"},
		{" a\n+b\n-c\n d\n", " a\n+b\n-c\n d\n"},
	} {
		var got strings.Builder
		for _, l := range ParsePatch(test.diff)[0].Lines {
			parts := l.Parts
			if parts == nil {
				parts = []DiffPart{{Text: strings.TrimSuffix(l.Text, "\n")}}
			}
			for _, p := range parts {
				if p.Changed {
					p.Text = "[" + p.Text + "]"
				}
				got.WriteString(p.Text)
			}
			got.WriteByte('\n')
		}
		if got.String() != test.want {
			t.Errorf("got\n%s\nwant\n%s", got.String(), test.want)
		}
	}
}

func FuzzParsePatch(f *testing.F) {
	for _, text := range append([]string{gitPatch, "--- a\n+++ b\n@@ -1 +1 @@\n-a b c\n+a d c\n", "@@ -1,2147483647 +1 @@\n", "@@ -4294967296 +1,99999999999 @@\n", "diff --git \"a", "\n\n+", "# \n@@ -1 +1 @@\n-a\n+\xff"}, hostile...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		files := ParsePatch(text)
		var got strings.Builder
		left := 0
		for _, file := range files {
			left += file.Left
			if len(file.Lines) > maxFileLines {
				t.Errorf("%d lines", len(file.Lines))
			}
			for _, l := range file.Lines {
				got.WriteString(l.Text)
				var parts strings.Builder
				for _, p := range l.Parts {
					parts.WriteString(p.Text)
				}
				if l.Parts != nil && parts.String() != strings.TrimSuffix(l.Text, "\n") {
					t.Errorf("the parts of %q are %+q", l.Text, parts.String())
				}
			}
		}
		if left == 0 && got.String() != text {
			t.Errorf("the lines of %q are %q", text, got.String())
		}
		if len(text) > 2000 {
			return
		}
		var out bytes.Buffer
		if err := pageTemplate().ExecuteTemplate(&out, "diff", files); err != nil {
			t.Fatal(err)
		}
		if hidden := findUnseen(out.Bytes()); hidden != "" {
			t.Errorf("characters that are not seen: %s", hidden)
		}
		doc, err := html.Parse(&out)
		if err != nil {
			t.Fatal(err)
		}
		for n := range doc.Descendants() {
			if n.Type == html.ElementNode && !strings.Contains(" html head body h3 pre p span ", " "+n.Data+" ") {
				t.Errorf("<%s> in the diff", n.Data)
			}
		}
	})
}
