package file

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of what .gitignore files may cost a search: every entry is compared
// with every pattern above it.
const (
	ignoreFileBytes = 64 << 10
	ignoreLineBytes = 1024
	maxIgnoreRules  = 2000
)

// ignores knows what the workspace's .gitignore files leave out. They count
// from the workspace's top down, as git's do in a repository there.
type ignores struct {
	reader workspace.View
	// rules holds the patterns that apply in a folder, its parents' first.
	rules map[string][]gitignore.Pattern
	total int
	off   bool
}

// newIgnores loads the rules above and in the folder start. Where they leave
// out start itself, which the caller named, nothing is left out.
func newIgnores(ctx context.Context, r workspace.View, start string) *ignores {
	i := &ignores{reader: r, rules: map[string][]gitignore.Pattern{}}
	i.enter(ctx, ".")
	if start == "." {
		return i
	}
	parts := strings.Split(start, "/")
	for n := range parts {
		folder := strings.Join(parts[:n+1], "/")
		if i.leavesOut(folder, true) {
			i.off = true
			return i
		}
		i.enter(ctx, folder)
	}
	return i
}

// enter loads the .gitignore of a folder. One that can't be read, or holds
// more than the bounds, counts as far as it was read.
func (i *ignores) enter(ctx context.Context, folder string) {
	rules := i.rules[path.Dir(folder)]
	if folder == "." {
		rules = nil
	}
	i.rules[folder] = rules
	f, err := i.reader.ReadFile(ctx, path.Join(folder, ".gitignore"), 0, ignoreFileBytes)
	if err != nil {
		return
	}
	var domain []string
	if folder != "." {
		domain = strings.Split(folder, "/")
	}
	rules = slices.Clip(rules) // the parent's, not to be written to
	for line := range strings.Lines(string(f.Data)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' || len(line) > ignoreLineBytes {
			continue
		}
		if i.total++; i.total > maxIgnoreRules {
			break
		}
		rules = append(rules, gitignore.ParsePattern(line, domain))
	}
	i.rules[folder] = rules
}

// leavesOut says whether the rules leave out an entry, whose folder was entered.
func (i *ignores) leavesOut(name string, isDir bool) bool {
	if i.off {
		return false
	}
	if path.Base(name) == ".git" {
		return true
	}
	rules := i.rules[path.Dir(name)]
	if len(rules) == 0 {
		return false
	}
	return gitignore.NewMatcher(rules).Match(strings.Split(name, "/"), isDir)
}
