package overlay

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Why changes are left out of an apply.
const (
	leftSpecial = "it is a pipe, a socket or a device"
	leftGit     = "a git of the host obeys or runs it"
	leftGitDir  = "the repository's own folder was moved, removed or replaced"
	leftGitFile = "it names the repository that a git of the host obeys"
	leftCaisson = "it is Caisson's own configuration"
	leftLinkOut = "it is a symlink that leads out of the workspace"
)

// gitObeyed are the entries of a repository that its owner's git obeys or runs
// (gitrepository-layout(5), git-config(1), githooks(5), and the todo lists of
// git-rebase(1), git-am(1) and git-cherry-pick(1), which hold commands).
var gitObeyed = []string{
	"config", "config.worktree", "commondir", "gitdir", "hooks", "info", "worktrees", "remotes", "branches",
	"rebase-merge", "rebase-apply", "sequencer",
}

// gitKept are entries of info that hold no configuration: git gc and repack write them.
var gitKept = []string{"info/refs", "info/packs", "info/commit-graph"}

// lookupFunc says whether a path is in the upper layer, and in the original folder.
type lookupFunc func(path string) (upper, lower bool)

// markLeftOut marks what apply doesn't bring in though nothing conflicts. The
// function linkAt returns the targets of symlinks.
func (s *Changes) markLeftOut(lookUp lookupFunc, linkAt func(path string) (string, bool)) {
	replaced := s.findReplacedRepositories()
	repos := bareRepositories{lookUp: lookUp, known: map[string]bool{}}
	for i := range s.List {
		c := &s.List[i]
		switch {
		case isSpecial(c.Now) && c.Kind != Mode:
			c.LeftOut = leftSpecial
		case c.Path == ".caisson" || strings.HasPrefix(c.Path, ".caisson/"):
			c.LeftOut = leftCaisson
		case isWithin(c.Path, replaced):
			c.LeftOut, c.Git = leftGitDir, true
		default:
			c.LeftOut = findGitReason(c, repos)
			c.Git = c.LeftOut != ""
		}
		if c.Now != workspace.TypeLink || c.LeftOut != "" && !c.Git || !workspace.LeadsOut(c.Path, c.Target, linkAt) {
			continue
		}
		c.LinkOut = true
		if c.LeftOut == "" {
			c.LeftOut = leftLinkOut + ", to " + quote(c.Target)
		}
	}
}

func isSpecial(t workspace.Type) bool {
	switch t {
	case workspace.TypeFIFO, workspace.TypeSocket, workspace.TypeDevice, workspace.TypeOther:
		return true
	}
	return false
}

// findGitReason says why a change is none of files, but of what git does, or "".
func findGitReason(c *Change, repos bareRepositories) string {
	names := strings.Split(c.Path, "/")
	for i, name := range names {
		if !isGit(name) {
			continue
		}
		if i == len(names)-1 {
			if c.Now == workspace.TypeDir || c.Now == "" && c.Was == workspace.TypeDir {
				return ""
			}
			return leftGitFile
		}
		// Git makes no links in a repository; one could lead to what it obeys.
		if isObeyed(names[i+1:]) || c.Now == workspace.TypeLink {
			return leftGit
		}
	}
	for i := range names {
		switch {
		case i > 0 && isGit(names[i-1]):
		case isObeyed(names[i:]) && repos.isRepository(joinNames(names[:i])):
			return leftGit
		case slices.Contains(repositorySigns, names[i]) && repos.completesRepository(joinNames(names[:i]), names[i]):
			return leftGitFile
		}
	}
	return ""
}

func joinNames(names []string) string {
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, "/")
}

// isGit knows a repository by its name, on file systems that fold case too.
func isGit(name string) bool { return strings.EqualFold(name, ".git") }

// isGuarded says whether commands of a session in bind mode may not write to a
// path: a second name of such a file, outside, would be a way to.
func isGuarded(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool {
		return isGit(name) || strings.EqualFold(name, ".caisson")
	})
}

// isObeyed says whether a path in a repository is one that git obeys. Those of
// submodules lie in modules, under names that may have slashes.
func isObeyed(rest []string) bool {
	if strings.EqualFold(rest[0], "modules") {
		for i := 1; i < len(rest); i++ {
			if isObeyed(rest[i:]) {
				return true
			}
		}
		return false
	}
	if !slices.ContainsFunc(gitObeyed, func(name string) bool { return strings.EqualFold(name, rest[0]) }) {
		return false
	}
	return !slices.Contains(gitKept, strings.Join(rest, "/"))
}

// isWithin says whether a path is one of the folders or below one.
func isWithin(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}

// findReplacedRepositories are the .git folders that were removed, or became
// something else: nothing of that is applied, since the half of it would
// neither be the old repository nor the new one.
func (s *Changes) findReplacedRepositories() []string {
	var out []string
	for i := range s.List {
		c := &s.List[i]
		if isGit(base(c.Path)) && c.Was != "" && (c.Kind == Deleted && c.Was == workspace.TypeDir || c.Kind == Typed) {
			out = append(out, c.Path)
		}
	}
	return out
}

// repositorySigns are what git tells a repository by, beside commondir, which is
// obeyed in any case; see [isRepository].
var repositorySigns = []string{"HEAD", "objects", "refs"}

// isRepository says whether git takes a folder for a repository (is_git_directory
// in setup.c), from what it holds: objects and refs may be where a commondir file says.
func isRepository(holds func(name string) bool) bool {
	return holds("HEAD") && (holds("commondir") || holds("objects") && holds("refs"))
}

// bareRepositories finds the folders that git takes for a repository by what
// they hold.
type bareRepositories struct {
	lookUp lookupFunc
	known  map[string]bool
}

// isRepository says whether a folder is one, with the changes applied.
func (b bareRepositories) isRepository(dir string) bool {
	is, ok := b.known[dir]
	if !ok {
		is = isRepository(func(name string) bool {
			upper, lower := b.lookUp(join(dir, name))
			return upper || lower
		})
		b.known[dir] = is
	}
	return is
}

// completesRepository says whether sign, which is new in a folder that was no repository,
// makes it one around configuration or hooks that are there already.
func (b bareRepositories) completesRepository(dir, sign string) bool {
	was := func(name string) bool {
		_, lower := b.lookUp(join(dir, name))
		return lower
	}
	return b.isRepository(dir) && !was(sign) && !isRepository(was) && slices.ContainsFunc(gitObeyed, was)
}
