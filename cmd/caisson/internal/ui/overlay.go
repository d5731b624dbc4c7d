package ui

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
)

// Stat lists changed files as git does.
func Stat(d changes.Differences, colour bool) []string {
	return diffstatLines(runner.Report{SessionEnded: record.SessionEnded{Changed: d.Changed, ChangedCount: d.Count, Incomplete: d.Incomplete}}, style{colour})
}

// Diff makes a unified diff safe for a terminal, in colours.
func Diff(text string, colour bool) string {
	safe, _ := tools.DisplayLines(strings.ReplaceAll(text, "\r\n", "␍\n"))
	if !colour {
		return safe
	}
	s := style{true}
	var b strings.Builder
	for l := range strings.Lines(safe) {
		body, end := strings.TrimSuffix(l, "\n"), ""
		if len(body) < len(l) {
			end = "\n"
		}
		switch {
		case strings.HasPrefix(body, "diff "), strings.HasPrefix(body, "--- "), strings.HasPrefix(body, "+++ "),
			strings.HasPrefix(body, "new file"), strings.HasPrefix(body, "deleted file"), strings.HasPrefix(body, "old mode"), strings.HasPrefix(body, "new mode"):
			body = s.bold(body)
		case strings.HasPrefix(body, "@@"):
			body = s.cyan(body)
		case strings.HasPrefix(body, "+"):
			body = s.green(body)
		case strings.HasPrefix(body, "-"):
			body = s.red(body)
		case strings.HasPrefix(body, "# "):
			body = s.yellow(body)
		}
		b.WriteString(body + end)
	}
	return b.String()
}

// maxDiffLines and maxDiffCells bound the diff of an edit below its line.
const maxDiffLines, maxDiffCells = 16, 160

// editLines returns the beginning of the diff of a call that changed files without a
// question. The call's own line names a single file.
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
		lines = append(lines, s.dim("… "+formatCount(more, "more line")))
	}
	for i, l := range lines {
		lines[i] = verbatimIndent + l
	}
	return lines
}

// HostExecuted warns of files that a program of the host would run, and of deleted
// ones that bounded it.
func HostExecuted(files []record.HostExecuted, colour bool) []string {
	s := style{colour}
	return firstFew(files, func(h record.HostExecuted) string {
		if h.Target != "" {
			return s.yellow(safeLine(fmt.Sprintf("! %s is a symlink that leads out of the workspace, to %s", h.Path, h.Target)))
		}
		if h.Deleted {
			return s.yellow(safeLine(fmt.Sprintf("! %s was deleted: what it asked of %s counts no more", h.Path, h.By)))
		}
		return s.yellow(safeLine(fmt.Sprintf("! read %s before you go on: %s runs or obeys it", h.Path, h.By)))
	})
}

// Conflicts lists what is not applied because its original changed.
func Conflicts(list []record.PathNote, colour bool) []string {
	s := style{colour}
	return firstFew(list, func(n record.PathNote) string { return s.red(safeLine("! conflict: " + n.Path + ": " + n.Why)) })
}

// LeftOut lists what is not applied for other reasons.
func LeftOut(list []record.PathNote, colour bool) []string {
	s := style{colour}
	return firstFew(list, func(n record.PathNote) string { return s.yellow(safeLine("! left out: " + n.Path + ": " + n.Why)) })
}

// Failed lists what the system refused to change.
func Failed(list []record.PathNote, colour bool) []string {
	s := style{colour}
	return firstFew(list, func(n record.PathNote) string { return s.red(safeLine("! failed: " + n.Path + ": " + n.Why)) })
}

// describeKept describes the changes that an overlay session left, and the next
// commands.
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
		return append(out, s.green(fmt.Sprintf("applied to the workspace: %s", formatCount(o.Applied, "change"))))
	case o.Applied > 0:
		out = append(out, s.green(fmt.Sprintf("applied to the workspace: %s of %d", formatCount(o.Applied, "change"), o.Changes)))
	default:
		out = append(out, "the workspace is as it was; the changes are kept:")
	}
	return append(out,
		"  caisson diff "+r.Session+"     shows them",
		"  caisson apply "+r.Session+"    brings them in")
}
