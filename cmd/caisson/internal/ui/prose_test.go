package ui

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
)

const proseSample = "# The **end**\n\nRun `go test ./store -run Total` and *then* read [the page](https://example.org/a?b=c), see ![plan](p.png).\n\n" +
	"- one that is longer than the width of this narrow terminal\n  1. two\n\n> said\n\n```sh\n\tgo test ./... -run 'a very long line that no one may break' && echo \x1b[31m\n```\n<b>x</b>\n\n| a | b | a row of a table that is longer than the terminal |\n"

func TestProse(t *testing.T) {
	want := []string{
		"# The **end**", "",
		"Run `go test ./store -run Total` and", "*then* read the page", "(https://example.org/a?b=c), see image:", "plan (p.png).", "",
		"- one that is longer than the width of", "  this narrow terminal", "  1. two", "",
		"> said", "",
		"```sh", "        go test ./... -run 'a very long", "          line that no one may break' &&", "          echo \\x1b[31m", "```", "",
		"<b>x</b>", "",
		"| a | b | a row of a table that is", "longer than the terminal |",
	}
	if diff := cmp.Diff(want, Prose(proseSample, 41, false)); diff != "" {
		t.Error(diff)
	}
	coloured := strings.Join(Prose(proseSample, 0, true), "\n")
	for _, want := range []string{"\x1b[36mgo test ./store -run Total\x1b[0m", "\x1b[1m# \x1b[0m", "\x1b[3mthen\x1b[0m", "\n\tgo test"} {
		if !strings.Contains(coloured, want) {
			t.Errorf("no %q in %q", want, coloured)
		}
	}
	plain := strings.NewReplacer("`", "", "*", "").Replace(strings.Join(Prose(proseSample, 0, false), "\n"))
	if got := strings.ReplaceAll(ansi.Strip(coloured), "`", ""); got != plain {
		t.Errorf("colour shows another text:\n%s", cmp.Diff(plain, got))
	}
}

// TestProseObeysNothing: no text of a model is a sequence that a terminal obeys.
func TestProseObeysNothing(t *testing.T) {
	for _, text := range []string{"\x1b]8;;http://evil\x07x", "`\x1b[2J`", "[a](\x1b[31m)", "```\x1b[1m\n\x9b31m\n```", "\ue000", "**\u202e**", "&#27;[31m &#x9b;", "<\x1b[31m>", "# \r\x1b[A"} {
		for _, line := range Prose(text, 0, false) {
			if strings.ContainsAny(line, "\x1b\x07\r\u009b\u202e\ue000") {
				t.Errorf("%q is shown as %q", text, line)
			}
		}
	}
}

// TestTables: a table fits the terminal, and none of its words is broken.
func TestTables(t *testing.T) {
	const table = "- a list:\n\n  Name | **What it is** | Lines\n  --- |:---:| ---:\n  `go.mod` | a file that names `all of` it | 6\n  long.txt | b\\|c | 120\n"
	for columns, want := range map[int]string{
		0: "- a list:\n\n" +
			"  Name     │ **What** **it** **is**          │ Lines\n" +
			"  ─────────┼─────────────────────────────────┼──────\n" +
			"  `go.mod` │ a file that names `all` `of` it │     6\n" +
			"  long.txt │ b|c                             │   120",
		40: "- a list:\n\n" +
			"  Name     │ **What** **it**    │ Lines\n" +
			"           │ **is**             │\n" +
			"  ─────────┼────────────────────┼──────\n" +
			"  `go.mod` │ a file that names  │     6\n" +
			"           │ `all` `of` it      │\n" +
			"  ─────────┼────────────────────┼──────\n" +
			"  long.txt │ b|c                │   120",
		24: "- a list:\n\n" +
			"  Name ─ `go.mod`\n  **What** **it**\n    **is** ─ a file\n    that names `all`\n    `of` it\n  Lines ─ 6\n\n" +
			"  Name ─ long.txt\n  **What** **it**\n    **is** ─ b|c\n  Lines ─ 120",
	} {
		got := strings.Join(Prose(table, columns, false), "\n")
		if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s\n%s", columns, diff, got)
		}
		for _, row := range Prose(table, columns, true) {
			if columns > 0 && ansi.StringWidth(row) >= columns || strings.Count(row, "\x1b[")%2 != 0 {
				t.Errorf("%d columns: %q", columns, row)
			}
		}
	}
}

// TestTablesAreBounded: a table's widest cell doesn't widen all rows, even without a
// terminal and after a list's prefix.
func TestTablesAreBounded(t *testing.T) {
	for name, cell := range map[string]string{"a word": strings.Repeat("x", 50_000), "words": strings.Repeat("word ", 10_000)} {
		table := "|a|b|\n|-|-|\n|" + cell + "|y|\n" + strings.Repeat("|x|y|\n", 700)
		deep := strings.Repeat("999999999. ", 6)
		nested := deep + strings.ReplaceAll(table, "\n", "\n"+strings.Repeat(" ", len(deep)))
		for _, columns := range []int{0, 60, 80} {
			for _, text := range []string{table, nested} {
				size := 0
				for _, row := range Prose(text, columns, false) {
					size += len(row)
				}
				if size > 2<<20 {
					t.Errorf("%s, %d columns: %d bytes of %d", name, columns, size, len(text))
				}
			}
		}
	}
}
