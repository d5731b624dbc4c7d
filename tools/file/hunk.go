package file

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// document is a text file split into lines. Line ends are kept apart, so that a
// patch with \n fits a file whose lines all end in \r\n.
type document struct {
	lines []string
	end   string // "\n" or "\r\n"
	mark  string // byte order mark, or ""
	// open means that the last line has no line end.
	open bool
}

// byteOrderMark begins many Windows text files. It is not part of the first line.
var byteOrderMark = []byte("\ufeff")

func readDocument(content []byte) document {
	d := document{end: "\n"}
	if rest, ok := bytes.CutPrefix(content, byteOrderMark); ok {
		d.mark, content = string(byteOrderMark), rest
	}
	if len(content) == 0 {
		return d
	}
	d.lines = strings.Split(string(content), "\n")
	last := len(d.lines) - 1
	if d.lines[last] == "" {
		d.lines = d.lines[:last]
	} else {
		d.open = true
	}
	ended := d.lines[:last]
	if last > 0 && !slices.ContainsFunc(ended, func(l string) bool { return !strings.HasSuffix(l, "\r") }) {
		d.end = "\r\n"
		for i := range ended {
			ended[i] = strings.TrimSuffix(ended[i], "\r")
		}
	}
	return d
}

func (d document) bytes() []byte {
	if len(d.lines) == 0 {
		return []byte(d.mark)
	}
	text := d.mark + strings.Join(d.lines, d.end)
	if !d.open {
		text += d.end
	}
	return []byte(text)
}

// looseness is how freely lines are compared.
type looseness int

const (
	exact looseness = iota
	looseEnds
	looseMarks
)

func (l looseness) words() string {
	switch l {
	case looseEnds:
		return "white space at line ends ignored"
	case looseMarks:
		return "look-alike quotes, dashes and spaces taken as equal"
	}
	return ""
}

// lookAlikes replaces typographic dashes, quotes and spaces by keyboard characters.
// Models confuse them in both directions.
var lookAlikes = strings.NewReplacer(
	"\u2010", "-", "\u2011", "-", "\u2012", "-", "\u2013", "-", "\u2014", "-", "\u2015", "-", "\u2212", "-",
	"\u2018", "'", "\u2019", "'", "\u201a", "'", "\u201b", "'",
	"\u201c", `"`, "\u201d", `"`, "\u201e", `"`, "\u201f", `"`,
	"\u00a0", " ", "\u2002", " ", "\u2003", " ", "\u2007", " ", "\u2009", " ", "\u202f", " ", "\u3000", " ",
	"\u2026", "...",
)

func (l looseness) normalize(line string) string {
	switch l {
	case looseEnds:
		return strings.TrimRight(line, " \t\r")
	case looseMarks:
		return strings.TrimRight(lookAlikes.Replace(line), " \t\r")
	}
	return line
}

// spot is a place where a hunk fits.
type spot struct {
	at int // index of its first line in the document
	h  *hunk
	// from and to bound the changed lines, relative to at. Context around them may
	// be shared with other hunks.
	from, to int
}

func (s spot) firstLine() int { return s.at + s.from }
func (s spot) lineAfter() int { return s.at + s.to }

// oldLines returns the hunk's lines that are in the file.
func (h *hunk) oldLines() []string {
	var lines []string
	for _, l := range h.lines {
		if l.op != '+' {
			lines = append(lines, l.text)
		}
	}
	return lines
}

// spotAt places the hunk at a line. Its change spans from the first removed or
// added line to the last.
func (h *hunk) spotAt(at int) spot {
	s := spot{at: at, h: h, from: -1}
	n := 0
	for _, l := range h.lines {
		if l.op != ' ' && s.from < 0 {
			s.from = n
		}
		if l.op != '+' {
			n++
		}
		if l.op != ' ' {
			s.to = n
		}
	}
	return s
}

// matchWork bounds the line comparisons for one file. A hunk of a thousand lines in
// a file of ten thousand takes at most ten million.
const matchWork = 50_000_000

// patcher finds where one file's hunks fit.
type patcher struct {
	ctx  context.Context
	path string
	doc  document
	work int
	// forms caches the document's lines, normalized for each looseness.
	forms   [looseMarks + 1][]string
	loosest looseness
}

// applyHunks returns the changed file, and the loosest comparison needed.
func applyHunks(ctx context.Context, path string, before []byte, hunks []hunk) ([]byte, looseness, error) {
	p := &patcher{ctx: ctx, path: path, doc: readDocument(before)}
	choices := make([][]spot, len(hunks))
	for i := range hunks {
		at, err := p.findSpots(i, &hunks[i])
		if err != nil {
			return nil, 0, err
		}
		for _, a := range at {
			choices[i] = append(choices[i], hunks[i].spotAt(a))
		}
	}
	spots, err := p.chooseSpots(choices)
	if err != nil {
		return nil, 0, err
	}
	return p.doc.replaceSpots(spots).bytes(), p.loosest, nil
}

// replaceSpots makes the changes, which are sorted and don't overlap.
func (d document) replaceSpots(spots []spot) document {
	out := document{end: d.end, mark: d.mark, open: d.open}
	done := 0
	for _, s := range spots {
		out.lines = append(out.lines, d.lines[done:s.firstLine()]...)
		done = s.firstLine()
		n := 0
		for _, l := range s.h.lines {
			switch {
			case l.op == '+':
				l.text = strings.TrimSuffix(l.text, "\r")
				// In a file with mixed line ends, the previous line decides.
				if at := s.at + max(n-1, 0); at < len(d.lines) && strings.HasSuffix(d.lines[at], "\r") {
					l.text += "\r"
				}
				out.lines = append(out.lines, l.text)
			case l.op == '-':
				n++
				done = max(done, s.at+n)
			default:
				// Context between changes stays as the file has it.
				if at := s.at + n; at >= s.firstLine() && at < s.lineAfter() {
					out.lines = append(out.lines, d.lines[at])
					done = at + 1
				}
				n++
			}
		}
		if s.h.oldOpen || s.h.newOpen {
			out.open = s.h.newOpen
		}
	}
	out.lines = append(out.lines, d.lines[done:]...)
	return out
}

// findSpots returns the lines where a hunk fits, ascending, or an error.
func (p *patcher) findSpots(i int, h *hunk) ([]int, error) {
	if err := p.countComparisons(len(h.anchors) * len(p.doc.lines)); err != nil {
		return nil, err
	}
	old := h.oldLines()
	if len(old) == 0 {
		return p.insertionSpots(i, h)
	}
	for l := exact; l <= looseMarks; l++ {
		all, err := p.findMatches(old, l)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			continue
		}
		if end := len(p.doc.lines) - len(old); h.atEnd && slices.Contains(all, end) {
			all = []int{end}
		}
		if len(h.anchors) > 0 {
			if all, err = p.afterAnchors(i, h, all); err != nil {
				return nil, err
			}
		}
		p.loosest = max(p.loosest, l)
		return all, nil
	}
	return nil, p.hunkError(i, h, "0 matches for its lines%s", p.nearestHint(old))
}

func (p *patcher) insertionSpots(i int, h *hunk) ([]int, error) {
	switch {
	case len(h.anchors) > 0:
		after := p.findAnchors(h.anchors)
		if len(after) == 0 {
			return nil, p.hunkError(i, h, "0 matches for its @@ line%s", listAnchors(h.anchors))
		}
		for j := range after {
			after[j]++
		}
		return after, nil
	case h.atEnd || len(p.doc.lines) == 0:
		return []int{len(p.doc.lines)}, nil
	}
	return nil, p.hunkError(i, h, "it only adds lines and does not say where; add context lines around them, an @@ line before, or *** End of File after")
}

func (p *patcher) normalizedLines(l looseness) []string {
	if l == exact {
		return p.doc.lines
	}
	if p.forms[l] == nil {
		p.forms[l] = make([]string, len(p.doc.lines))
		for i, line := range p.doc.lines {
			p.forms[l][i] = l.normalize(line)
		}
	}
	return p.forms[l]
}

func (p *patcher) countComparisons(n int) error {
	if p.work += n; p.work > matchWork {
		return refuse("too_large", "%s: finding the places of the patch takes too long; use fewer or more telling lines, or write the file anew. Nothing was changed.", shown(p.path))
	}
	return nil
}

func (p *patcher) findMatches(old []string, l looseness) ([]int, error) {
	want := make([]string, len(old))
	for i, line := range old {
		if p.doc.end == "\r\n" {
			line = strings.TrimSuffix(line, "\r")
		}
		want[i] = l.normalize(line)
	}
	lines := p.normalizedLines(l)
	var at []int
	for i := 0; i+len(want) <= len(lines); i++ {
		n := 0
		for n < len(want) && lines[i+n] == want[n] {
			n++
		}
		if n == len(want) {
			at = append(at, i)
		}
		if err := p.countComparisons(n + 1); err != nil {
			return nil, err
		}
		if i%4096 == 0 && p.ctx.Err() != nil {
			return nil, fmt.Errorf("find hunks: %w", context.Cause(p.ctx))
		}
	}
	return at, nil
}

// findAnchors returns the lines where a chain of anchors ends, for each place where
// it can begin.
func (p *patcher) findAnchors(anchors []string) []int {
	ends := p.anchorLines(anchors[0])
	for _, a := range anchors[1:] {
		next := p.anchorLines(a)
		var found []int
		for _, end := range ends {
			if i, _ := slices.BinarySearch(next, end+1); i < len(next) {
				found = append(found, next[i])
			}
		}
		ends = slices.Compact(found)
	}
	return ends
}

// anchorLines returns the lines equal to an anchor or, if there are none, those
// that begin with it. Indentation doesn't count: models leave it out.
func (p *patcher) anchorLines(a string) []int {
	a = strings.TrimSpace(looseMarks.normalize(a))
	var whole, begun []int
	for i, line := range p.normalizedLines(looseMarks) {
		switch line = strings.TrimSpace(line); {
		case line == a:
			whole = append(whole, i)
		case strings.HasPrefix(line, a):
			begun = append(begun, i)
		}
	}
	if len(whole) > 0 {
		return whole
	}
	return begun
}

func (p *patcher) afterAnchors(i int, h *hunk, all []int) ([]int, error) {
	ends := p.findAnchors(h.anchors)
	if len(ends) == 0 {
		return nil, p.hunkError(i, h, "0 matches for its @@ line%s", listAnchors(h.anchors))
	}
	var kept []int
	for _, end := range ends {
		if j, _ := slices.BinarySearch(all, end); j < len(all) {
			kept = append(kept, all[j])
		}
	}
	if len(kept) == 0 {
		return nil, p.hunkError(i, h, "its lines stand before its @@ line%s, not after it", listAnchors(h.anchors))
	}
	return slices.Compact(kept), nil
}

// chooseSpots returns the place of each hunk: the only one, or the only one in the
// order of the hunks.
func (p *patcher) chooseSpots(choices [][]spot) ([]spot, error) {
	spots := make([]spot, 0, len(choices))
	if !slices.ContainsFunc(choices, func(c []spot) bool { return len(c) > 1 }) {
		for _, c := range choices {
			spots = append(spots, c[0])
		}
		slices.SortStableFunc(spots, func(a, b spot) int { return a.firstLine() - b.firstLine() })
		for i := 1; i < len(spots); i++ {
			if spots[i].firstLine() < spots[i-1].lineAfter() {
				return nil, p.hunkError(-1, spots[i].h, "it changes lines that another hunk changes too; make them one hunk")
			}
		}
		return spots, nil
	}
	from := 0
	for i, c := range choices {
		j := slices.IndexFunc(c, func(s spot) bool { return s.firstLine() >= from })
		if j < 0 {
			return nil, p.hunkError(i, c[0].h, "its lines stand before those of the hunk above it; put the hunks in the file's order")
		}
		spots = append(spots, c[j])
		from = c[j].lineAfter()
	}
	// If the last possible places, counted from the end, differ, the choice is
	// ambiguous.
	limit := len(p.doc.lines)
	for i, c := range slices.Backward(choices) {
		var last spot
		fits := 0
		for _, s := range c {
			if s.lineAfter() <= limit && s.firstLine() >= spots[i].firstLine() {
				last = s
				fits++
			}
		}
		if last.at != spots[i].at {
			return nil, p.hunkError(i, spots[i].h, "%d matches for its lines, at lines %s; add lines around it, or an @@ line before it, until it is the only one",
				fits, listLines(c))
		}
		limit = last.firstLine()
	}
	return spots, nil
}

func listLines(spots []spot) string {
	const most = 10
	var list []string
	for _, s := range spots[:min(len(spots), most)] {
		list = append(list, strconv.Itoa(s.at+1))
	}
	if len(spots) > most {
		list = append(list, "…")
	}
	return strings.Join(list, ", ")
}

// nearestHint says where a hunk's lines almost fit: with other white space, or in
// part.
func (p *patcher) nearestHint(old []string) string {
	if len(p.doc.lines) == 0 {
		return "; the file is empty"
	}
	want := make([]string, len(old))
	for i, l := range old {
		want[i] = collapseSpace(l)
	}
	best, at := 0, 0
	work := 0
	for i := range p.doc.lines {
		n := 0
		for n < len(want) && i+n < len(p.doc.lines) && collapseSpace(p.doc.lines[i+n]) == want[n] {
			n++
		}
		if n > best {
			best, at = n, i
		}
		if work += n + 1; work > matchWork/100 {
			break
		}
	}
	switch {
	case best == len(want):
		return fmt.Sprintf("; line %d of the file differs from them in white space only: copy it exactly, indentation included", at+1)
	case best > 0 && at+best < len(p.doc.lines):
		return fmt.Sprintf("; at line %d of the file it has %s where the patch has %s: read the file again", at+best+1, quoteStart(p.doc.lines[at+best]), quoteStart(old[best]))
	case best > 0:
		return fmt.Sprintf("; the file ends at line %d, where the patch has %s: read the file again", at+best, quoteStart(old[best]))
	}
	return fmt.Sprintf(", which begin with %s: read the file again", quoteStart(old[0]))
}

func collapseSpace(s string) string { return strings.Join(strings.Fields(lookAlikes.Replace(s)), " ") }

func listAnchors(anchors []string) string {
	quoted := make([]string, len(anchors))
	for i, a := range anchors {
		quoted[i] = quoteStart(a)
	}
	return " " + strings.Join(quoted, ", ")
}

func (p *patcher) hunkError(i int, h *hunk, format string, args ...any) error {
	name := "a hunk"
	if i >= 0 {
		name = "hunk " + strconv.Itoa(i+1)
	}
	return refuse("no_match", "%s, %s (line %d of the patch): "+format+". Nothing was changed.",
		append([]any{shown(p.path), name, h.line}, args...)...)
}
