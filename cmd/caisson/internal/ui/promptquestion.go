package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// minShare is the least number of rows for a part of a question: its first, its last,
// and the count of hidden ones.
const minShare = 3

// question is a confirmation on the terminal. All foreign text in it must go through
// safeLine, although the dispatcher made it safe.
type question struct {
	approval.Confirmation
	place place
	style style
}

type section struct {
	rows  []string
	paint func(string) string // nil for none
}

// allSections returns the parts of the question: the call with its class and place,
// its arguments, warnings, the changes, and the meaning of lasting answers. everything
// is as in argumentLines.
func (q question) allSections(now time.Time, columns int, everything bool) []section {
	ours := func(paint func(string) string, text string) section {
		return section{wrapSentence(text, columns), paint}
	}
	all := []section{ours(q.style.yellow, q.headLines())}
	if q.Workspace != "" {
		all = append(all, ours(nil, "  in "+q.Workspace))
	}
	if q.Redefined {
		all = append(all, ours(q.style.red, "  its server has changed the definition of this tool since it was allowed"))
	}
	if q.Description != "" {
		all = append(all, ours(q.style.dim, "  the server "+q.Name.Server()+" says of it: "+strings.ReplaceAll(q.Description, "\n", " ")))
	}
	all = append(all, q.argumentLines(columns, everything)...)
	if q.Hidden {
		all = append(all, ours(q.style.red, "  it holds characters that terminals don't show; they are written as escapes"))
	}
	for _, n := range q.Notices {
		all = append(all, ours(q.style.red, "  note: "+n))
	}
	if q.Dangerous != "" {
		all = append(all, ours(q.style.red, "  the policy calls this dangerous: "+q.Dangerous))
	}
	if len(q.Projected) > 0 {
		all = append(all, ours(nil, "  would change: "+strings.Join(q.Projected, ", ")))
	}
	all = append(all, q.diffLines(columns))
	if len(q.Covers) > 0 {
		all = append(all, ours(nil, "  the answer covers what is in "+strings.Join(q.Covers, ", ")+" now, and no other file that it reads"))
	}
	if offers(q.Confirmation, approval.ScopeSession) {
		all = append(all, ours(q.style.dim, "  a covers "+q.SessionWords()))
	}
	if offers(q.Confirmation, approval.ScopeAlways) {
		all = append(all, ours(q.style.dim, "  A and d are kept for "+q.LastingWords()))
	}
	if !q.Expires.IsZero() {
		left := max(q.Expires.Sub(now), 0).Round(time.Second)
		all = append(all, ours(q.style.dim, fmt.Sprintf("  no answer within %s, by %s, is no", left, q.Expires.Format(time.TimeOnly))))
	}
	return all
}

// boundedLines returns the question in at most rows rows, and reports whether it is
// complete. It shortens long parts in the middle, so that the end of a command is
// always shown.
func (q question) boundedLines(now time.Time, columns, rows int) (lines []string, whole bool) {
	all := q.allSections(now, columns, false)
	share := rows
	for share > minShare && totalLines(all, share) > rows {
		share--
	}
	whole = !q.DiffElided
	for _, s := range all {
		kept := elideRows(s.rows, share)
		whole = whole && len(kept) == len(s.rows)
		for _, row := range kept {
			lines = append(lines, s.paintedLines(row))
		}
	}
	if len(lines) > rows {
		return elideRows(lines, rows), false
	}
	return lines, whole
}

// allLines returns everything about the question, in rows.
func (q question) allLines(now time.Time, columns int) []string {
	var rows []string
	for _, s := range q.allSections(now, columns, true) {
		for _, row := range s.rows {
			rows = append(rows, s.paintedLines(row))
		}
	}
	return rows
}

func (s section) paintedLines(row string) string {
	if s.paint == nil {
		return row
	}
	return s.paint(row)
}

// totalLines returns the rows of all sections, each cut to share.
func totalLines(all []section, share int) int {
	n := 0
	for _, s := range all {
		n += min(len(s.rows), share)
	}
	return n
}

// elideRows keeps the first and last rows, at most n.
func elideRows(rows []string, n int) []string {
	n = max(n, minShare)
	if len(rows) <= n {
		return rows
	}
	tail := n / 2
	head := n - 1 - tail
	kept := slices.Clone(rows[:head])
	kept = append(kept, fmt.Sprintf("  … %s not shown: press v", limits.FormatCount(len(rows)-head-tail, "row")))
	return append(kept, rows[len(rows)-tail:]...)
}

func (q question) headLines() string {
	head := "? "
	if q.place.of > 1 {
		head += fmt.Sprintf("[%d of %d] ", q.place.nth, q.place.of)
	}
	if q.Name == approval.HostTool {
		return head + "a command in the sandbox wants to " + q.Summary + ", which no rule is about"
	}
	head += fmt.Sprintf("%s wants to run, class %s", q.Name, q.Class)
	switch q.Runs {
	case tools.PlaceSandbox:
		head += ", in the sandbox"
	case tools.PlaceHost:
		head += ", on the host"
	}
	if q.Changed {
		head += " (again: the file has changed since)"
	}
	return head
}

func (q question) diffLines(columns int) section {
	var s section
	lines := slices.Collect(strings.Lines(q.Diff))
	for i, l := range lines {
		lines[i] = replaceTabs(strings.TrimSuffix(l, "\n"))
	}
	parts := map[string]changedPart{} // by row, for lines that fit in one
	for i, part := range findChangedParts(lines) {
		rows := wrapForeign("  ", lines[i], columns)
		if len(rows) == 1 && rows[0] == "  "+lines[i] {
			if _, twice := parts[rows[0]]; twice {
				part = changedPart{} // two equal lines differ from others in different words
			}
			parts[rows[0]] = changedPart{part.from + 2, part.to + 2}
		}
		s.rows = append(s.rows, rows...)
	}
	s.paint = func(row string) string { return paintDiff(q.style, row, parts[row]) }
	return s
}

func paintDiff(s style, row string, part changedPart) string {
	switch {
	case strings.HasPrefix(row, "  +++ "), strings.HasPrefix(row, "  --- "):
		return s.bold(row)
	case strings.HasPrefix(row, "  +"):
		return s.paintChanged("32", row, part)
	case strings.HasPrefix(row, "  -"):
		return s.paintChanged("31", row, part)
	}
	return row
}

func offers(c approval.Confirmation, s approval.Scope) bool { return slices.Contains(c.Scopes, s) }

// keys explains each key. Single keys need no Enter.
func keys(c approval.Confirmation, columns int, single bool) []string {
	lines := []string{"  y  allow this call, and nothing else"}
	if c.Name == approval.HostTool {
		lines[0] = "  y  allow this command to connect to this host and port, and nothing else"
	}
	if offers(c, approval.ScopeSession) {
		lines = append(lines, "  a  allow "+safeLine(c.SessionWords()))
	}
	if offers(c, approval.ScopeAlways) {
		lines = append(lines, "  A  allow for good: "+safeLine(c.LastingWords()), "  d  refuse for good: the same; caisson approvals takes both back")
	}
	lines = append(lines, "  v  show the whole, with what the question leaves out", "  l  list the questions that wait")
	if single {
		lines = append(lines, "  n  refuse this call; so does Enter", "  r  refuse it, and type the reason, which the model is told")
	} else {
		lines = append(lines,
			"  n  refuse this call; so do Enter alone and every other key",
			"     what follows n on its line is the reason, which the model is told: n use make test")
	}
	var rows []string
	for _, l := range lines {
		rows = append(rows, WrapWords(l, columns-1, "     ")...)
	}
	return rows
}

// waitingLines returns a line for each waiting question. c is the current one. Listing
// a question doesn't show it completely, so it allows nothing.
func waitingLines(waiting []approval.Confirmation, c approval.Confirmation, columns int) []string {
	lines := make([]string, 0, len(waiting))
	for i, o := range waiting {
		mark := "  "
		if o.ID == c.ID && o.Seq == c.Seq {
			mark = "* "
		}
		text := safeLine(fmt.Sprintf("%d. %s, class %s: %s", i+1, o.Name, o.Class, o.Input))
		lines = append(lines, fitWidth("  "+mark+text, columns))
	}
	return append(lines, "  * is asked now; the others follow in this order")
}

// choices names the keys. Before the question was seen completely, none of them allows.
// Single keys need no Enter.
func choices(c approval.Confirmation, seen, others, single bool) string {
	var keys []string
	if seen {
		keys = append(keys, "y once")
		if offers(c, approval.ScopeSession) {
			keys = append(keys, "a this session")
		}
		if offers(c, approval.ScopeAlways) {
			keys = append(keys, "A always")
		}
	} else {
		keys = append(keys, "v whole, then y")
	}
	if single {
		keys = append(keys, "n no", "r no and why")
	} else {
		keys = append(keys, "n no (or n and why)")
	}
	if offers(c, approval.ScopeAlways) {
		keys = append(keys, "d never")
	}
	if others {
		keys = append(keys, "l list")
	}
	return "  " + strings.Join(append(keys, "? help"), ", ") + " > "
}
