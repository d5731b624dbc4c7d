// Package changes finds how a workspace differs from its state when a session began, or what an
// overlay holds, and which of these changes a program on the host would run or obey.
package changes

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Differences are a session's changes so far, as in [record.SessionEnded].
type Differences struct {
	Changed        []record.Changed
	ChangedOmitted int
	Count          record.ChangeCount
	HostExecuted   []record.HostExecuted
	// HostExecutedOmitted counts files that are not listed.
	HostExecutedOmitted int
	// Conflicts and LeftOut are an overlay's, as in [record.OverlayResult].
	Conflicts, LeftOut []record.PathNote
	// Patch is a unified diff, byte for byte, of the changes that have one.
	Patch string
	// Incomplete reports that changes may be missing, because the workspace was too large or
	// not fully readable.
	Incomplete bool
}

// ReadOverlay returns the changes that an overlay session keeps of the workspace dir.
func ReadOverlay(ctx context.Context, l *overlay.Layers, dir *os.File, changes *overlay.Changes) (Differences, error) {
	var patch strings.Builder
	stats, err := l.Diff(ctx, dir, changes, &patch, overlay.DiffOptions{TotalBytes: maxReportedPatchText})
	if err != nil {
		return Differences{}, err
	}
	d := List(changes, stats)
	d.Patch = patch.String()
	d.Conflicts, d.LeftOut = Notes(changes.List, overlay.ApplyOptions{})
	return d, nil
}

// Compare compares the workspace of r with f. images has files before their first change by a
// tool; nil makes no diffs.
func (f *FileStates) Compare(ctx context.Context, r *workspace.Reader, images *Preimages, look Look) (Differences, error) {
	var list changeList
	whole, err := f.compareFiles(ctx, r, look, func(c fileChange) {
		changed := record.Changed{Path: c.path, Change: c.change}
		if c.stat != nil {
			changed.Size = c.stat.Size
		}
		list.addChange(changed)
		if h, ok := hostExecuted(changed, c.target); ok {
			list.addExecuted(h)
		}
	})
	list.sortLists()
	d := Differences{Incomplete: f.isIncomplete() || !whole}
	if images != nil {
		d.Patch = makeDiffs(ctx, r, list.changed, images, f)
	}
	d.setList(&list)
	return d, err
}

// WithMount returns d with the changes of a directory that is mounted at target.
func (d Differences) WithMount(target string, of Differences) Differences {
	list := changeList{omitted: d.ChangedOmitted + of.ChangedOmitted, executedOmitted: d.HostExecutedOmitted + of.HostExecutedOmitted}
	for _, c := range d.Changed {
		list.addChange(c)
	}
	for _, c := range of.Changed {
		c.Path = PathInMount(target, c.Path)
		list.addChange(c)
	}
	for _, h := range d.HostExecuted {
		list.addExecuted(h)
	}
	for _, h := range of.HostExecuted {
		h.Path = PathInMount(target, h.Path)
		list.addExecuted(h)
	}
	d.setList(&list)
	d.Incomplete = d.Incomplete || of.Incomplete
	return d
}

// PathInMount returns the path in the sandbox of p in a directory mounted at target. For the
// workspace, whose target is "", it returns p.
func PathInMount(target, p string) string {
	switch {
	case target == "":
		return p
	case p == ".":
		return target
	}
	return target + "/" + p
}

func (d *Differences) setList(l *changeList) {
	l.sortLists()
	d.Changed, d.ChangedOmitted, d.Count = record.NonNil(l.changed), l.omitted, l.countChanges()
	d.HostExecuted, d.HostExecutedOmitted = record.NonNil(l.executed), l.executedOmitted
}

func leadsOut(ctx context.Context, r *workspace.Reader, p, target string) bool {
	return workspace.SymlinkEscapes(p, target, func(name string) (string, bool) {
		st, err := r.StatEntry(ctx, name)
		return st.Target, err == nil && st.Type == workspace.TypeSymlink
	})
}

// makeDiffs returns the diffs of changed files, and marks the files that have one.
func makeDiffs(ctx context.Context, r *workspace.Reader, list []record.Changed, images *Preimages, f *FileStates) string {
	var patch strings.Builder
	for i := range list {
		c := &list[i]
		if ctx.Err() != nil {
			break
		}
		text, added, removed, ok := images.diffFile(ctx, r, *c, f.contentBefore)
		if ok && patch.Len()+len(text) <= maxReportedPatchText {
			c.HasDiff, c.Insertions, c.Deletions, c.Size = true, added, removed, 0
			patch.WriteString(text)
		}
	}
	return patch.String()
}

// List lists and counts changes as records do.
func List(c *overlay.Changes, s *overlay.Stats) Differences {
	d := Differences{Incomplete: c.Truncated || len(c.Unread) > 0}
	d.setList(overlayList(c, s))
	return d
}

// HostExecuted lists the changes that a program on the host would run or obey once they are
// applied with o, and symlinks out of the workspace. It skips changes that an apply leaves out,
// and files of a repository that git only reads.
func HostExecuted(c *overlay.Changes, o overlay.ApplyOptions) []record.HostExecuted {
	out := []record.HostExecuted{}
	for i := range c.List {
		change := &c.List[i]
		if o.LeavesOut(change) || !change.File() || !change.Git && slices.Contains(strings.Split(change.Path, "/"), ".git") {
			continue
		}
		target := ""
		if change.LinkOut {
			target = change.Target
		}
		if h, ok := hostExecuted(record.Changed{Path: change.Path, Change: string(change.Kind)}, target); ok {
			out = append(out, h)
		}
	}
	return out
}

// ReadBounds bounds the changes that are read during or after a session. Files that a host would
// run or obey come first.
var ReadBounds = overlay.ReadOptions{MaxEntries: 40_000, MaxTextBytes: 6 << 20, First: isHostExecuted}

// overlayList lists changes as records do: files, and directories whose mode alone changed.
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

// Notes returns the changes that conflict and the ones that an apply with o leaves out. A
// directory that is left out stands for its content.
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
