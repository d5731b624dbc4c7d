package main

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// The columns of a finding: its result, its check, and what there is to say,
// which goes on below itself.
const (
	resultWidth = 8
	checkWidth  = 15
	indent      = resultWidth + 1 + checkWidth + 1
)

// resultColours are on a terminal.
var resultColours = map[string]string{resultOK: "32", resultWarning: "33", resultFailed: "1;31", resultAbsent: "2"}

// showFindings writes the findings for people, or as JSON. On a terminal lines
// are broken at its width and results have colours.
func showFindings(a *app, findings []finding, asJSON bool) error {
	for i, f := range findings {
		findings[i].Detail, findings[i].Mend = safeurl.InText(f.Detail), safeurl.InText(f.Mend)
	}
	if asJSON {
		return writeJSON(a.stdout, findings)
	}
	width := 0
	colour := false
	if a.terminal(a.stdout) {
		width, _ = a.size()
		width = max(width, indent+20)
		colour = a.environ.get("NO_COLOR") == "" && a.environ.get("TERM") != "dumb"
	}
	var out strings.Builder
	counts := map[string]int{}
	for _, f := range findings {
		counts[f.Result]++
		word := fmt.Sprintf("%-*s", resultWidth, f.Result)
		if colour {
			word = "\x1b[" + resultColours[f.Result] + "m" + word + "\x1b[0m"
		}
		fmt.Fprintf(&out, "%s %-*s %s\n", word, checkWidth, f.Check, hang(f.Detail, "", width))
		if f.Mend != "" {
			fmt.Fprintf(&out, "%*s%s\n", indent, "", hang(f.Mend, "→ ", width))
		}
	}
	fmt.Fprintf(&out, "\n%s\n", summary(counts))
	_, err := fmt.Fprint(a.stdout, out.String())
	return err
}

// hang makes text safe to show and breaks it at a width, 0 for none, so that it
// stands in its column behind what it begins with.
func hang(text, begin string, width int) string {
	safe, _ := tools.Display(text)
	if width == 0 {
		return begin + safe
	}
	column := indent + ansi.StringWidth(begin)
	// Wrap breaks behind hyphens, and would take names apart that are copied.
	const hyphen, whole = "-", "\u2011"
	lines := strings.Split(ansi.Wrap(strings.ReplaceAll(safe, hyphen, whole), width-column, ""), "\n")
	return begin + strings.ReplaceAll(strings.Join(lines, "\n"+strings.Repeat(" ", column)), whole, hyphen)
}

// summary says how it went in one line.
func summary(counts map[string]int) string {
	text := fmt.Sprintf("%d ok, %d warnings, %d failed", counts[resultOK], counts[resultWarning], counts[resultFailed])
	if counts[resultWarning] == 1 {
		text = strings.Replace(text, "warnings", "warning", 1)
	}
	switch {
	case counts[resultFailed] > 0:
		return text + ": mend what failed before you run anything."
	case counts[resultWarning] > 0:
		return text + ": caisson run works here; look at the warnings."
	}
	return text + ": caisson run works here."
}
