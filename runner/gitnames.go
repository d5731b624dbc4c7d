package runner

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// gitObeyed are the entries of a repository that git obeys or runs: its
// configuration, what names other configuration, hooks, attributes, and the
// steps of operations that git goes on with (gitrepository-layout(5),
// githooks(5), git-rebase(1), git-am(1), git-cherry-pick(1)).
var gitObeyed = []string{
	"config", "config.worktree", "commondir", "gitdir", "hooks", "info", "modules", "worktrees", "remotes", "branches",
	"rebase-merge", "rebase-apply", "sequencer",
}

// gitUnfinished are those of the last kind. Without one git doesn't go on.
var gitUnfinished = []string{"rebase-merge", "rebase-apply", "sequencer"}

// The files of a repository that ordinary work writes, by their path in it.
// Git runs and obeys none of them, as long as each is a regular file of its own:
// through a symlink or another name git would write to another file.
var (
	gitFiles = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(` + strings.Join([]string{
			`HEAD`, `index`, `packed-refs`, `shallow`, `sharedindex\.[0-9a-f]+`, `gc\.log`, `gc\.pid`, `gitk\.cache`,
			`[A-Z][A-Z0-9_]*`, `addp-hunk-edit\.diff`, `ADD_EDIT\.patch`, // HEAD and its like, messages, bisection
			`refs/.+`, `logs/.+`, `lost-found/.+`, `reftable/.+`, `lfs/.+`, `annex/.+`, `fsmonitor--daemon/.+`,
			`objects/[0-9a-f]{2}/[0-9a-f]+`, `objects/(.*/)?\.?tmp[-_][^/]+`, `objects/pack/(pack-[^/]+|multi-pack-index[^/]*)`,
			`objects/info/(packs|commit-graph|commit-graphs/[^/]+)`, `objects/maintenance`, `info/(refs|packs)`,
		}, "|") + `)(\.lock)?$`)
	})
	gitDirs = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(objects(/[0-9a-f]{2}|/pack|/info|/info/commit-graphs)?|(refs|logs|lost-found|reftable|lfs|annex|fsmonitor--daemon)(/.+)?|objects/tmp_[^/]+)$`)
	})
	// hgFiles and hgDirs are the same of Mercurial (hg help internals).
	hgFiles = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(dirstate[^/]*|branch|bookmarks[^/]*|localtags|last-message\.txt|undo\.[^/]+|00changelog\.i|(w?cache|store|merge|strip-backup|shelved)/.+|shelvedstate|graftstate|updatestate|commit[^/]*\.txt)$`)
	})
	hgDirs = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(w?cache|store|merge|strip-backup|shelved)(/.+)?$`)
	})
	hgLinks = []string{"wlock", "store/lock", "wcache/checklink"} // symlinks that hg makes itself and never follows
)

// mayDiffer reports whether ordinary work makes an entry of a repository's
// directory, a file or a directory, which may then be another one than before.
func mayDiffer(repository, rest string, dir bool) bool {
	if isNamed(path.Base(repository), ".hg") {
		if dir {
			return hgDirs().MatchString(rest)
		}
		return hgFiles().MatchString(rest)
	}
	names := strings.Split(rest, "/")
	switch names[0] {
	case "worktrees":
		return len(names) > 2 && mayDiffer(repository, strings.Join(names[2:], "/"), dir)
	case "modules":
		// Names of submodules may have slashes, and be those of anything.
		for i := 2; i < len(names); i++ {
			if slices.Contains(gitObeyed, names[i]) && names[i-1] != "objects" {
				return false
			}
		}
		for i := 2; i < len(names); i++ {
			if mayDiffer(repository, strings.Join(names[i:], "/"), dir) {
				return true
			}
		}
		return false
	}
	if dir {
		return gitDirs().MatchString(rest)
	}
	return gitFiles().MatchString(rest)
}

// isNamed reports whether a name is that of a repository, on file systems that
// fold case too.
func isNamed(name string, names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}
