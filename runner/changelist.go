package runner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Bounds of the lists of a report, each with its paths. What is beyond is
// counted.
const (
	maxReported          = 10_000
	maxReportedText      = 1 << 20
	maxHostExecuted      = 1_000
	maxHostExecutedText  = 256 << 10
	maxReportedPatchText = 8 << 20
)

// ChangeCount counts all changes of a session, those included that a list leaves
// out.
//
//	{"files":3,"insertions":14,"deletions":2,"uncounted":1}
type ChangeCount struct {
	// Files counts changed files and symlinks.
	Files int `json:"files"`
	// Insertions and Deletions are the lines of those whose lines are known,
	// Uncounted is the number of the others.
	Insertions int `json:"insertions"`
	Deletions  int `json:"deletions"`
	Uncounted  int `json:"uncounted,omitempty"`
}

// String returns the count as diff --stat does.
func (n ChangeCount) String() string {
	files := plural(n.Files, "file") + " changed"
	if n.Files > 0 && n.Uncounted == n.Files {
		return files + ", lines not counted"
	}
	text := fmt.Sprintf("%s, %s(+), %s(-)", files, plural(n.Insertions, "insertion"), plural(n.Deletions, "deletion"))
	if n.Uncounted > 0 {
		text += fmt.Sprintf(", and %s whose lines are not counted", plural(n.Uncounted, "file"))
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// changeList collects the changes of a session, within bounds.
type changeList struct {
	changed  []Changed
	executed []HostExecuted
	// text and executedText are the bytes of their paths.
	text, executedText int
	// omitted and executedOmitted count what is left out.
	omitted, executedOmitted int
}

// add adds one change.
func (l *changeList) add(c Changed) {
	if len(l.changed) >= maxReported || l.text+len(c.Path) > maxReportedText {
		l.omitted++
		return
	}
	l.text += len(c.Path)
	l.changed = append(l.changed, c)
}

// addExecuted adds what a host would run, obey or follow. Of many, those nearest
// to the top are kept: nothing pushes them out.
func (l *changeList) addExecuted(list ...HostExecuted) {
	for _, h := range list {
		l.executed = append(l.executed, h)
		l.executedText += len(h.Path) + len(h.Target)
		if len(l.executed) >= 2*maxHostExecuted || l.executedText >= 2*maxHostExecutedText {
			l.cutExecuted()
		}
	}
}

// cutExecuted keeps what there is room for.
func (l *changeList) cutExecuted() {
	slices.SortFunc(l.executed, func(a, b HostExecuted) int {
		return cmp.Or(a.compareDanger(b), cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/")), strings.Compare(a.Path, b.Path))
	})
	n, text := 0, 0
	for ; n < min(len(l.executed), maxHostExecuted); n++ {
		size := len(l.executed[n].Path) + len(l.executed[n].Target)
		if text+size > maxHostExecutedText {
			break
		}
		text += size
	}
	l.executedOmitted += len(l.executed) - n
	clear(l.executed[n:])
	l.executed, l.executedText = l.executed[:n], text
}

// executed lists one change where a host would run or obey it, or follow it;
// target is that of a symlink which leads out of the workspace, or "".
func executed(c Changed, target string) []HostExecuted {
	if target != "" && c.Change != "deleted" {
		return []HostExecuted{{Path: c.Path, By: bySymlink, Target: target, Added: c.Change == "added"}}
	}
	return hostExecuted([]Changed{c})
}

// sort cuts the lists and sorts them by path.
func (l *changeList) sort() {
	l.cutExecuted()
	slices.SortFunc(l.changed, func(a, b Changed) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(l.executed, func(a, b HostExecuted) int { return cmp.Or(a.compareDanger(b), strings.Compare(a.Path, b.Path)) })
}

// count counts the changes; what is left out of the list has no lines.
func (l *changeList) count() ChangeCount {
	n := ChangeCount{Files: len(l.changed) + l.omitted, Uncounted: l.omitted}
	for i := range l.changed {
		c := &l.changed[i]
		if !c.HasDiff {
			n.Uncounted++
		}
		n.Insertions += c.Insertions
		n.Deletions += c.Deletions
	}
	return n
}

// compareDanger orders what a host executes: a new file is seen more easily than a
// change in one that was trusted.
func (h HostExecuted) compareDanger(other HostExecuted) int {
	switch {
	case h.Added == other.Added:
		return 0
	case other.Added:
		return -1
	}
	return 1
}
