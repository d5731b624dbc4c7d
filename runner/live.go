package runner

import (
	"context"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Differences are what a session has changed so far, as in [record.SessionEnded].
type Differences struct {
	Changed        []record.Changed
	ChangedOmitted int
	Count          record.ChangeCount
	HostExecuted   []record.HostExecuted
	// HostExecutedOmitted counts those that are not listed.
	HostExecutedOmitted int
	// Conflicts and LeftOut are those of an overlay, as in [record.OverlayResult].
	Conflicts, LeftOut []record.PathNote
	// Patch is a unified diff of what has one, the very bytes.
	Patch string
	// Incomplete says that the workspace was too large, or could not be read,
	// to be sure of the list.
	Incomplete bool
}

// Differences says what differs now from the session's start. It may be called
// while a turn runs: what is written meanwhile is in it or not. It ends with ctx,
// and when the session is closed; its errors then wrap [ErrOver].
func (s *Session) Differences(ctx context.Context) (Differences, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	began := s.turns > 0
	if s.closing {
		s.mu.Unlock()
		return Differences{}, fmt.Errorf("compare workspace: %w: it is closed", ErrOver)
	}
	s.lookers.Add(1) // under mu: Close waits for no looker that comes later
	s.mu.Unlock()
	defer s.lookers.Done()
	stop := context.AfterFunc(s.looks, func() { cancel(fmt.Errorf("%w: it is closed", ErrOver)) })
	defer stop()
	if !began {
		return Differences{}, nil // nothing has run
	}
	select {
	case <-s.looked:
	case <-ctx.Done():
		return Differences{}, fmt.Errorf("compare workspace: %w", context.Cause(ctx))
	}
	ctx, slow := context.WithTimeoutCause(ctx, lookTime, errSlow)
	defer slow()
	var d Differences
	var err error
	if s.overlaid() {
		d, err = s.overlayDifferences(ctx)
	} else {
		d, err = s.bindDifferences(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	return d, nil
}

func (s *Session) overlayDifferences(ctx context.Context) (Differences, error) {
	if !s.recorded {
		return Differences{}, nil // nothing has run
	}
	changes, err := s.layers.Changes(ctx, s.opts.Workspace.Dir, SessionReads)
	if err != nil {
		return Differences{}, err
	}
	return ReadDifferences(ctx, s.layers, s.opts.Workspace, changes)
}

// ReadDifferences gives the changes that an overlay session keeps.
func ReadDifferences(ctx context.Context, l *overlay.Layers, w *Workspace, changes *overlay.Changes) (Differences, error) {
	var patch strings.Builder
	stats, err := l.Diff(ctx, w.Dir, changes, &patch, overlay.DiffOptions{TotalBytes: maxReportedPatchText})
	if err != nil {
		return Differences{}, err
	}
	d := ListChanges(changes, stats)
	d.Patch = patch.String()
	d.Conflicts, d.LeftOut = ChangeNotes(changes.List, overlay.ApplyOptions{})
	return d, nil
}

func (s *Session) bindDifferences(ctx context.Context) (Differences, error) {
	var list changeList
	whole, err := s.files.compare(ctx, s.original, func(c fileChange) {
		changed := record.Changed{Path: c.path, Change: c.change}
		target := ""
		if c.stat != nil {
			changed.Size = c.stat.Size
			if c.stat.Type == workspace.TypeSymlink && s.leadsOut(ctx, c.path, c.stat.Target) {
				target = c.stat.Target
			}
		}
		list.add(changed)
		list.addExecuted(executed(changed, target)...)
	})
	list.sort()
	d := Differences{Incomplete: s.files.incomplete() || !whole}
	d.Patch = s.diffs(ctx, list.changed)
	d.setList(&list)
	return d, err
}

// setList fills in the lists of changes, sorted, and their counts.
func (d *Differences) setList(l *changeList) {
	l.sort()
	d.Changed, d.ChangedOmitted, d.Count = record.NonNil(l.changed), l.omitted, l.count()
	d.HostExecuted, d.HostExecutedOmitted = record.NonNil(l.executed), l.executedOmitted
}

// leadsOut reports whether the symlink at p leads out of the workspace.
func (s *Session) leadsOut(ctx context.Context, p, target string) bool {
	return workspace.LeadsOut(p, target, func(name string) (string, bool) {
		st, err := s.original.StatEntry(ctx, name)
		return st.Target, err == nil && st.Type == workspace.TypeSymlink
	})
}

// diffs makes the diffs that can be made of changed files, and says in the list
// which have one.
func (s *Session) diffs(ctx context.Context, list []record.Changed) string {
	var patch strings.Builder
	for i := range list {
		c := &list[i]
		if ctx.Err() != nil {
			break
		}
		text, added, removed, ok := s.exec.images.diff(ctx, s.original, *c, s.files.before)
		if ok && patch.Len()+len(text) <= maxReportedPatchText {
			c.HasDiff, c.Insertions, c.Deletions, c.Size = true, added, removed, 0
			patch.WriteString(text)
		}
	}
	return patch.String()
}
