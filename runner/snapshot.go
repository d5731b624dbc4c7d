package runner

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

// snapshotEntries bounds what is compared; a larger workspace is reported as
// incomplete.
const snapshotEntries = 200_000

// snapshot is the workspace's metadata at one moment: enough to tell which
// files are other ones, without reading them.
type snapshot struct {
	files map[string]stamp
	// repositories are paths of .git, files or folders, and of bare ones.
	repositories map[string]bool
	incomplete   bool
}

// stamp is what tells one state of a file from another. The change time can't
// be set by a program, so that a content changed with the old size and
// modification time is still seen.
type stamp struct {
	kind   workspace.Type
	size   int64
	mode   uint32
	mtime  int64
	ctime  int64
	inode  uint64
	target string
}

func stampOf(e workspace.Entry) stamp {
	return stamp{
		kind: e.Type, size: e.Size, mode: uint32(e.Mode), mtime: e.ModTime.UnixNano(), ctime: e.ChangeTime.UnixNano(),
		inode: e.Inode, target: e.Target,
	}
}

// takeSnapshot walks the workspace. What is below the top-level .git is left
// out: it is read-only, or the agent was allowed to commit.
func takeSnapshot(ctx context.Context, r *workspace.Reader) (*snapshot, error) {
	s := &snapshot{files: map[string]stamp{}, repositories: map[string]bool{}}
	signs := map[string]int{}
	walked, err := r.Walk(ctx, ".", workspace.WalkOptions{MaxEntries: snapshotEntries}, func(e workspace.Entry) error {
		base, dir := path.Base(e.Path), path.Dir(e.Path)
		if base == ".git" {
			s.repositories[e.Path] = true
			return workspace.SkipDir
		}
		if base == "HEAD" || base == "objects" || base == "refs" {
			if signs[dir]++; signs[dir] == 3 {
				s.repositories[dir] = true
			}
		}
		if e.Type != workspace.TypeDir {
			s.files[e.Path] = stampOf(e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.incomplete = walked.Truncated || len(walked.Incomplete) > 0
	return s, nil
}

// compare lists what differs, by path.
func (s *snapshot) compare(after *snapshot) []Changed {
	var out []Changed
	for p, now := range after.files {
		if before, ok := s.files[p]; !ok {
			out = append(out, Changed{Path: p, Change: "added"})
		} else if before != now {
			out = append(out, Changed{Path: p, Change: "modified"})
		}
	}
	for p := range s.files {
		if _, ok := after.files[p]; !ok {
			out = append(out, Changed{Path: p, Change: "deleted"})
		}
	}
	slices.SortFunc(out, func(a, b Changed) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// newRepositories lists the repositories that were not there before. The
// workspace's own .git, made by an agent that was allowed to, is not among
// them where own says so.
func (s *snapshot) newRepositories(after *snapshot) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(after.repositories)) {
		if !s.repositories[p] {
			out = append(out, p)
		}
	}
	return out
}
