package changes

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// List lists changes as records do, and counts them.
func List(c *overlay.Changes, s *overlay.Stats) Differences {
	d := Differences{Incomplete: c.Truncated || len(c.Unread) > 0}
	d.setList(overlayList(c, s))
	return d
}

// HostExecuted lists the changes that a program of the host would run or
// obey once they are applied with o, and the symlinks that lead out. What apply
// leaves out is not among them, nor the rest of a repository, which git only
// reads.
func HostExecuted(c *overlay.Changes, o overlay.ApplyOptions) []record.HostExecuted {
	out := []record.HostExecuted{}
	for i := range c.List {
		change := &c.List[i]
		switch {
		case o.LeavesOut(change), !change.File(), !change.Git && slices.Contains(strings.Split(change.Path, "/"), ".git"):
		case change.LinkOut:
			out = append(out, record.HostExecuted{Path: change.Path, By: bySymlink, Target: change.Target})
		default:
			out = append(out, hostExecuted([]record.Changed{{Path: change.Path, Change: string(change.Kind)}})...)
		}
	}
	return out
}

// ReadBounds bounds the changes that are read while a session lives, or at its
// end. Files that a host would run or obey have room of their own.
var ReadBounds = overlay.ReadOptions{MaxEntries: 40_000, MaxTextBytes: 6 << 20, First: isHostExecuted}

// overlayList lists changes as records do: files, and directories whose mode alone
// changed.
func overlayList(c *overlay.Changes, stats *overlay.Stats) *changeList {
	l := &changeList{}
	for i := range c.List {
		change := &c.List[i]
		if !change.File() && change.Kind != overlay.Mode {
			continue
		}
		st := stats.Files[i]
		changed := record.Changed{
			Path: change.Path, Change: string(change.Kind), Insertions: st.Insertions, Deletions: st.Deletions, HasDiff: st.HasDiff,
		}
		if change.Kind != overlay.Deleted && !st.HasDiff {
			changed.Size = change.Size
		}
		l.addChange(changed)
	}
	l.omitted += c.Omitted
	for _, h := range HostExecuted(c, overlay.ApplyOptions{}) {
		l.addExecuted(h)
	}
	return l
}

// Notes divides changes into those that conflict and those that an apply
// with o leaves out. A directory that is left out stands for what is in it.
func Notes(list []overlay.Change, o overlay.ApplyOptions) (conflicts, left []record.PathNote) {
	dir := record.PathNote{}
	for i := range list {
		c := &list[i]
		switch {
		case o.LeavesOut(c):
			if dir.Path != "" && c.LeftOut == dir.Why && strings.HasPrefix(c.Path, dir.Path+"/") {
				continue
			}
			dir = record.PathNote{Path: c.Path, Why: c.LeftOut}
			left = append(left, dir)
		case c.Conflict != "":
			conflicts = append(conflicts, record.PathNote{Path: c.Path, Why: c.Conflict})
		}
	}
	return conflicts, left
}
