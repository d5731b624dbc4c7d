package main

import (
	"fmt"
	"strings"
)

// text is the table for a terminal.
func text(lines []line) string {
	var b strings.Builder
	const form = "%-70s %10s %10s %10s  %-9s %s\n"
	fmt.Fprintf(&b, form, "medians, in one run", "ours, ms", "peer, ms", "result", "target", "")
	for _, l := range lines {
		fmt.Fprintf(&b, form, l.what, l.ours, l.peer, l.result, l.target, l.verdict)
	}
	return b.String()
}

// markdown is the table for a page.
func markdown(lines []line) string {
	var b strings.Builder
	b.WriteString("| medians, in one run | ours, ms | peer, ms | result | target | |\n|---|---|---|---|---|---|\n")
	for _, l := range lines {
		cells := []string{l.what, l.ours, l.peer, l.result, l.target, l.verdict}
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", "\\|")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// The markers between which a page is written by this program.
const (
	begin = "<!-- make bench writes from here -->"
	end   = "<!-- to here -->"
)

// replace puts content between the markers of a page.
func replace(page, content string) (string, error) {
	before, rest, ok := strings.Cut(page, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the markers %q and %q are not there", begin, end)
	}
	return before + begin + "\n" + content + end + after, nil
}
