package changes

import (
	"cmp"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
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

// changeList collects the changes of a session, within bounds.
type changeList struct {
	changed  []record.Changed
	executed []record.HostExecuted
	// text and executedText are the bytes of their paths.
	text, executedText int
	// omitted and executedOmitted count what is left out.
	omitted, executedOmitted int
}

// addChange adds one change.
func (l *changeList) addChange(c record.Changed) {
	if len(l.changed) >= maxReported || l.text+len(c.Path) > maxReportedText {
		l.omitted++
		return
	}
	l.text += len(c.Path)
	l.changed = append(l.changed, c)
}

// addExecuted adds what a host would run, obey or follow. Of many, those nearest
// to the top are kept: nothing pushes them out.
func (l *changeList) addExecuted(list ...record.HostExecuted) {
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

// listExecuted lists one change where a host would run or obey it, or follow it;
// target is that of a symlink which leads out of the workspace, or "".
func listExecuted(c record.Changed, target string) []record.HostExecuted {
	if target != "" && c.Change != "deleted" {
		return []record.HostExecuted{{Path: c.Path, By: bySymlink, Target: target, Added: c.Change == "added"}}
	}
	return hostExecuted([]record.Changed{c})
}

// sortLists cuts the lists and sorts them by path.
func (l *changeList) sortLists() {
	l.cutExecuted()
	slices.SortFunc(l.changed, func(a, b record.Changed) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(l.executed, func(a, b record.HostExecuted) int {
		return cmp.Or(compareDanger(a, b), strings.Compare(a.Path, b.Path))
	})
}

// countChanges counts the changes; what is left out of the list has no lines.
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

// compareDanger orders what a host executes: a new file is seen more easily than a
// change in one that was trusted.
func compareDanger(a, b record.HostExecuted) int { return compareFlags(a.Added, b.Added) }
