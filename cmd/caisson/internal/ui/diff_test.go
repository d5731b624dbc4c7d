package ui

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools/approval"
)

func markedWords(painted string) string {
	marked := regexp.MustCompile("\x1b\\[3[12];7m([^\x1b]*)\x1b\\[0m").ReplaceAllString(painted, "[$1]")
	return regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(marked, "")
}

func TestDiffMarksWords(t *testing.T) {
	for _, tt := range []struct{ name, diff, want string }{
		{
			"an insertion marks its line alone", "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-    return c.items.Sum()\n+    return c.items.Sum() - c.discount\n",
			"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-    return c.items.Sum()\n+    return c.items.Sum()[ - c.discount]\n",
		},
		{"whole words", "-price := itemCount\n+price := itemSum\n", "-price := [itemCount]\n+price := [itemSum]\n"},
		{"lines that share no word", "-a();\n+b();\n", "-a();\n+b();\n"},
		{"other numbers of lines", "-one two\n+one three\n+four\n", "-one two\n+one three\n+four\n"},
		{"pairs in order", "-x = 1\n-y = 2\n+x = 3\n+y = 4\n", "-x = [1]\n-y = [2]\n+x = [3]\n+y = [4]\n"},
		{"an empty line", "-\n+a\n", "-\n+a\n"},
		{"added lines alone", " a\n+b c\n \n-d e\n", " a\n+b c\n \n-d e\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, markedWords(Diff(tt.diff, true))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := Diff(tt.diff, false); got != tt.diff {
				t.Errorf("without colours: %q", got)
			}
		})
	}
}

func TestQuestionsMarkWords(t *testing.T) {
	long := strings.Repeat("word ", 30)
	q := question{Confirmation: approval.Confirmation{Question: approval.Question{Diff: "-total = sum\n+total = sum - rebate\n-" + long + "old\n+" + long + "new\n"}}, style: style{true}}
	s := q.diffLines(60)
	var rows []string
	for _, row := range s.rows {
		rows = append(rows, markedWords(s.paintedLines(row)))
	}
	if diff := cmp.Diff([]string{"  -total = sum", "  +total = sum[ - rebate]"}, rows[:2]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if all := strings.Join(rows[2:], "\n"); strings.Contains(all, "[") {
		t.Errorf("a line of several rows is marked:\n%s", all)
	}
}

// FuzzChangedParts: parts are within their lines, and between characters.
func FuzzChangedParts(f *testing.F) {
	f.Add("-a b\n+a c")
	f.Add("-\xff\xfe\n+\xffé")
	f.Add("-aa\n+a")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		for i, p := range findChangedParts(lines) {
			l := lines[i]
			if p.from < 0 || p.to < p.from || p.to > len(l) {
				t.Fatalf("%q: part %v", l, p)
			}
			if utf8.ValidString(l) && !utf8.ValidString(l[p.from:p.to]) {
				t.Fatalf("%q: part %v cuts a character", l, p)
			}
		}
	})
}
