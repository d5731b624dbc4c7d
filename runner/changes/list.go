package changes

import (
	"cmp"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
)

// Bounds of a report's lists, including paths. More is counted.
const (
	maxReported          = 10_000
	maxReportedText      = 1 << 20
	maxHostExecuted      = 1_000
	maxHostExecutedText  = 256 << 10
	maxReportedPatchText = 8 << 20
)

type changeList struct {
	changed  []record.Changed
	executed []record.HostExecuted
	// text and executedText are the sizes of their paths in bytes.
	text, executedText int
	// omitted and executedOmitted count what is left out.
	omitted, executedOmitted int
}

func (l *changeList) addChange(c record.Changed) {
	if len(l.changed) >= maxReported || l.text+len(c.Path) > maxReportedText {
		l.omitted++
		return
	}
	l.text += len(c.Path)
	l.changed = append(l.changed, c)
}

// addExecuted adds a file that a host would run, obey or follow. If there are many, the topmost
// are kept, so that nothing can push them out.
func (l *changeList) addExecuted(h record.HostExecuted) {
	l.executed = append(l.executed, h)
	l.executedText += len(h.Path) + len(h.Target)
	if len(l.executed) >= 2*maxHostExecuted || l.executedText >= 2*maxHostExecutedText {
		l.cutExecuted()
	}
}

// cutExecuted drops what exceeds the bounds.
func (l *changeList) cutExecuted() {
	slices.SortFunc(l.executed, func(a, b record.HostExecuted) int {
		return cmp.Or(compareDanger(a, b), cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/")), strings.Compare(a.Path, b.Path))
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

func (l *changeList) sortLists() {
	l.cutExecuted()
	slices.SortFunc(l.changed, func(a, b record.Changed) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(l.executed, func(a, b record.HostExecuted) int {
		return cmp.Or(compareDanger(a, b), strings.Compare(a.Path, b.Path))
	})
}

// countChanges counts the changes. Lines are unknown for changes not listed.
func (l *changeList) countChanges() record.ChangeCount {
	n := record.ChangeCount{Files: len(l.changed) + l.omitted, Uncounted: l.omitted}
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

// compareDanger orders changes of existing files first: new files are noticed more easily.
func compareDanger(a, b record.HostExecuted) int { return compareFlags(a.Added, b.Added) }
