package ui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
)

// changedPart has the bounds of the bytes of a diff's line that differ from the line
// that replaces it, or that it replaces.
type changedPart struct{ from, to int }

// findChangedParts returns the changed part of each line of a unified diff. It is empty
// for lines that were only added or removed, and if two lines have no word in common.
func findChangedParts(lines []string) []changedPart {
	parts := make([]changedPart, len(lines))
	is := func(i int, sign string) bool {
		return i < len(lines) && strings.HasPrefix(lines[i], sign) && !strings.HasPrefix(lines[i], strings.Repeat(sign, 3)+" ")
	}
	for i := 0; i < len(lines); {
		removed := i
		for is(i, "-") {
			i++
		}
		added := i
		for is(i, "+") {
			i++
		}
		if n := added - removed; n == i-added {
			for k := range n {
				parts[removed+k], parts[added+k] = compareLines(lines[removed+k], lines[added+k])
			}
		}
		i = max(i, removed+1)
	}
	return parts
}

func splitWords(line string) []string {
	var words []string
	start, inWord := 0, false
	for at := 0; at < len(line); {
		r, size := utf8.DecodeRuneInString(line[at:])
		isWord := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_'
		end := at + size
		if isWord && inWord {
			words[len(words)-1] = line[start:end]
		} else {
			start = at
			words = append(words, line[start:end])
		}
		at, inWord = end, isWord
	}
	return words
}

// compareLines returns the parts between the common words at the ends of two lines.
// Each line begins with a sign byte.
func compareLines(before, after string) (old, new changedPart) {
	a, b := splitWords(before[1:]), splitWords(after[1:])
	start, end := 0, 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	head, rest := strings.Join(a[:start], ""), strings.Join(a[len(a)-end:], "")
	if !strings.ContainsFunc(head+rest, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		return changedPart{}, changedPart{}
	}
	from := 1 + len(head)
	return changedPart{from, len(before) - len(rest)}, changedPart{from, len(after) - len(rest)}
}

// paintChanged paints a line of a diff, with its changed part inverted.
func (s style) paintChanged(code, line string, part changedPart) string {
	if part.from >= part.to {
		return s.paint(code, line)
	}
	return s.paint(code, line[:part.from]) + s.paint(code+";7", line[part.from:part.to]) + s.paint(code, line[part.to:])
}

// Diff makes a unified diff safe for a terminal and colours it. It marks the words that
// differ in replaced lines.
func Diff(text string, colour bool) string {
	safe, _ := tools.DisplayLines(strings.ReplaceAll(text, "\r\n", "␍\n"))
	if !colour {
		return safe
	}
	s := style{true}
	lines := strings.Split(safe, "\n")
	parts := findChangedParts(lines)
	for i, body := range lines {
		switch {
		case strings.HasPrefix(body, "diff "), strings.HasPrefix(body, "--- "), strings.HasPrefix(body, "+++ "),
			strings.HasPrefix(body, "new file"), strings.HasPrefix(body, "deleted file"), strings.HasPrefix(body, "old mode"), strings.HasPrefix(body, "new mode"):
			body = s.bold(body)
		case strings.HasPrefix(body, "@@"):
			body = s.cyan(body)
		case strings.HasPrefix(body, "+"):
			body = s.paintChanged("32", body, parts[i])
		case strings.HasPrefix(body, "-"):
			body = s.paintChanged("31", body, parts[i])
		case strings.HasPrefix(body, "# "):
			body = s.yellow(body)
		}
		lines[i] = body
	}
	return strings.Join(lines, "\n")
}

// maxDiffLines and maxDiffCells bound the diff of an edit below its line.
const maxDiffLines, maxDiffCells = 16, 160

// editLines returns the beginning of the diff of a call that changed files without a
// question. The call's own line names the file if there is only one.
func editLines(c *trace.Call, s style) []string {
	lines := strings.Split(strings.TrimRight(c.Diff, "\n"), "\n")
	if len(c.Modified) <= 1 && len(lines) > 2 && strings.HasPrefix(lines[0], "--- ") && strings.HasPrefix(lines[1], "+++ ") {
		lines = lines[2:]
	}
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	more := len(lines) - maxDiffLines
	lines = lines[:min(len(lines), maxDiffLines)]
	for i, l := range lines {
		lines[i] = fitWidth(safeLine(replaceTabs(l)), maxDiffCells)
	}
	lines = strings.Split(Diff(strings.Join(lines, "\n"), s.on), "\n")
	if more > 0 {
		lines = append(lines, s.dim("… "+limits.FormatCount(more, "more line")))
	}
	for i, l := range lines {
		lines[i] = verbatimIndent + l
	}
	return lines
}

// HostExecuted warns about files that a program of the host would run, and about
// deleted ones that restricted it, with one line for each directory. omitted counts
// unlisted files.
func HostExecuted(files []record.HostExecuted, omitted int, colour bool) []string {
	s := style{colour}
	lines := firstFew(changes.GroupHostExecuted(files), func(g changes.HostGroup) string { return s.yellow(safeLine("! " + g.String())) })
	if omitted > 0 {
		lines = append(lines, s.yellow(fmt.Sprintf("! … and %s that programs of this machine run or obey", limits.FormatCount(omitted, "other file"))))
	}
	return lines
}

// Conflicts lists changes that are not applied because their originals changed.
func Conflicts(list []record.PathNote, colour bool) []string {
	return noteLines("conflict", list, style{colour}.red)
}

// LeftOut lists changes that are not applied for other reasons.
func LeftOut(list []record.PathNote, colour bool) []string {
	return noteLines("left out", list, style{colour}.yellow)
}

// Failed lists changes that the system refused.
func Failed(list []record.PathNote, colour bool) []string {
	return noteLines("failed", list, style{colour}.red)
}

func noteLines(what string, list []record.PathNote, paint func(string) string) []string {
	return firstFew(list, func(n record.PathNote) string { return paint(safeLine("! " + what + ": " + n.Path + ": " + n.Why)) })
}

// describeKept describes an overlay session's changes, and the next commands.
func describeKept(r runner.Report, s style) []string {
	o := r.Overlay
	if o == nil {
		return nil
	}
	out := append(Conflicts(o.Conflicts, s.on), append(LeftOut(o.LeftOut, s.on), Failed(o.Failed, s.on)...)...)
	switch {
	case o.State == overlay.Empty:
		return out
	case o.State == overlay.Applied:
		what := limits.FormatCount(r.ChangedCount.Files, "file")
		if r.ChangedCount.Files == 0 {
			what = limits.FormatCount(o.Applied, "change") // such as of directories
		}
		return append(out, s.green("applied to the workspace: "+what))
	case o.Applied > 0:
		out = append(out, s.green(fmt.Sprintf("applied to the workspace: %s of %d", limits.FormatCount(o.Applied, "change"), o.Changes)))
	default:
		out = append(out, "the workspace is as it was; the changes are kept:")
	}
	return append(out,
		"  caisson diff "+r.Session+"     shows them",
		"  caisson apply "+r.Session+"    brings them in")
}
