package runner

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// snapshotEntries bounds what is walked.
	snapshotEntries = 500_000
	// unreadFolders is how many folders a walk names that it could not read.
	unreadFolders = 20
)

// snapshot is what of the workspace can lead a program of the host astray, at
// one moment. The zero value knows nothing.
type snapshot struct {
	// files counts them.
	files int
	// repositories are paths of .git, files or folders, and of bare ones.
	repositories map[string]bool
	// obeyed is the [fingerprint] of each repository but the top-level .git,
	// which is protected by its mount; "" is not known.
	obeyed map[string]string
	// unfinished are operations of the top-level repository that git goes on with.
	unfinished map[string]bool
	// whole says that the walk came to its end; unread are folders that it
	// could not look into, all of them unless there are unreadFolders.
	whole  bool
	unread []string
	// folders are those that the walk met, at most maxOpened: whose mode keeps
	// it out no listing tells.
	folders []string
}

// incomplete reports whether a repository may be there that is not known.
func (s *snapshot) incomplete() bool { return !s.whole || len(s.unread) > 0 }

// knows says whether the walk saw everything there was on the way to p: only
// then is a repository that is not in the snapshot a new one.
func (s *snapshot) knows(p string) bool {
	if !s.whole || len(s.unread) >= unreadFolders {
		return false
	}
	return !slices.ContainsFunc(s.unread, func(dir string) bool { return strings.HasPrefix(p, dir+"/") })
}

// unfinishedNames are what git obeys when an operation is continued
// (git-rebase, git-am, git-cherry-pick): their todo lists hold commands.
func unfinishedNames() []string {
	return []string{".git/rebase-merge", ".git/rebase-apply", ".git/sequencer"}
}

// takeSnapshot walks the workspace. What is below the top-level .git is left
// out: it is read-only, or the agent was allowed to commit.
// Each entry is also handed to also.
func takeSnapshot(ctx context.Context, r workspace.View, also ...func(workspace.Entry)) (*snapshot, error) {
	s := &snapshot{repositories: map[string]bool{}, obeyed: map[string]string{}, unfinished: map[string]bool{}}
	signs := map[string]sign{}
	walked, err := r.Walk(ctx, ".", workspace.WalkOptions{MaxEntries: snapshotEntries}, func(e workspace.Entry) error {
		for _, f := range also {
			f(e)
		}
		base, dir := path.Base(e.Path), path.Dir(e.Path)
		if base == ".git" {
			s.repositories[e.Path] = true
			return workspace.SkipDir
		}
		if is := signOf(base); is != 0 {
			if signs[dir] |= is; signs[dir].repository() {
				s.repositories[dir] = true
			}
		}
		if e.Type == workspace.TypeDir {
			if len(s.folders) < maxOpened {
				s.folders = append(s.folders, e.Path)
			}
			return nil
		}
		s.files++
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range unfinishedNames() {
		if there, err := r.Exists(ctx, name); err == nil && there {
			s.unfinished[name] = true
		}
	}
	for p := range s.repositories {
		if p != ".git" {
			s.obeyed[p] = fingerprint(ctx, r, p)
		}
	}
	s.whole, s.unread = !walked.Truncated, walked.Incomplete
	return s, nil
}

// sign is what of a repository a folder holds, as bits.
type sign uint8

const (
	signHead sign = 1 << iota
	signObjects
	signRefs
	signCommon
)

func signOf(name string) sign {
	switch name {
	case "HEAD":
		return signHead
	case "objects":
		return signObjects
	case "refs":
		return signRefs
	case "commondir":
		return signCommon
	}
	return 0
}

// repository says that git takes the folder for a bare repository (is_git_directory
// in setup.c): objects and refs may be where a commondir file says.
func (s sign) repository() bool {
	return s&signHead != 0 && (s&signCommon != 0 || s&signObjects != 0 && s&signRefs != 0)
}

// changedRepositories lists the repositories in which other things are obeyed
// than before. One that could not be read then may be the user's, as it is.
func (s *snapshot) changedRepositories(after *snapshot) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(after.obeyed)) {
		if was, ok := s.obeyed[p]; ok && was != "" && was != after.obeyed[p] {
			out = append(out, p)
		}
	}
	return out
}

// newRepositories lists the repositories that are in after and not here.
func (s *snapshot) newRepositories(after *snapshot) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(after.repositories)) {
		if !s.repositories[p] {
			out = append(out, p)
		}
	}
	return out
}

// enters says that a repository is entered by name; see [entrance].
func (s *snapshot) enters(name string) bool {
	return s.repositories[name] || path.Base(name) == "HEAD" && s.repositories[path.Dir(name)]
}

// newlyUnfinished lists the operations of git that a session left half done.
func (s *snapshot) newlyUnfinished(after *snapshot) []HostExecuted {
	var out []HostExecuted
	for _, name := range unfinishedNames() {
		if after.unfinished[name] && !s.unfinished[name] {
			out = append(out, HostExecuted{Path: name, By: "git, when the operation is continued"})
		}
	}
	return out
}
