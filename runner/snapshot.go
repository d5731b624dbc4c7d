package runner

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// snapshotEntries bounds what is walked.
	snapshotEntries = 500_000
	// unreadDirectories is how many directories a walk names that it could not read.
	unreadDirectories = 20
)

// snapshot says how much of the workspace a walk met. The zero value knows nothing.
type snapshot struct {
	// whole says that the walk came to its end; unread are directories that it
	// could not look into, all of them unless there are unreadDirectories.
	whole  bool
	unread []string
}

// incomplete reports whether there may be files that the walk did not meet.
func (s *snapshot) incomplete() bool { return !s.whole || len(s.unread) > 0 }

// knows reports whether the walk saw everything there was on the way to p: only
// then is a file that it did not meet a new one.
func (s *snapshot) knows(p string) bool {
	if !s.whole || len(s.unread) >= unreadDirectories {
		return false
	}
	return !slices.ContainsFunc(s.unread, func(dir string) bool { return strings.HasPrefix(p, dir+"/") })
}

// takeSnapshot walks the workspace and hands each entry to visit. Repositories are
// left out: see [repositories].
func takeSnapshot(ctx context.Context, r workspace.View, visit func(workspace.Entry)) (*snapshot, error) {
	walked, err := r.Walk(ctx, ".", workspace.WalkOptions{MaxEntries: snapshotEntries}, func(e workspace.Entry) error {
		visit(e)
		if isNamed(path.Base(e.Path), ".git", ".hg") {
			return workspace.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &snapshot{whole: !walked.Truncated, unread: walked.Incomplete}, nil
}
