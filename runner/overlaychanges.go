package runner

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// ListChanges lists changes as records do, and counts them.
func ListChanges(c *overlay.Changes, s *overlay.Stats) Differences {
	d := Differences{Incomplete: c.Truncated || len(c.Unread) > 0}
	d.setList(overlayList(c, s))
	return d
}

// HostExecutedChanges lists the changes that a program of the host would run or
// obey once they are applied with o, and the symlinks that lead out. What apply
// leaves out is not among them, nor the rest of a repository, which git only
// reads.
func HostExecutedChanges(c *overlay.Changes, o overlay.ApplyOptions) []record.HostExecuted {
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
