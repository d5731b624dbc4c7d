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
// with every pattern of the directories above it.
const (
	ignoreFileBytes = 64 << 10
	ignoreLineBytes = 1024
	maxIgnoreRules  = 2000
)

// ignoreFile is the name of the files whose rules count. They count from the
// workspace's top down, as git's do in a repository there.
const ignoreFile = ".gitignore"

// ignores are the rules that count in one directory: those of its own file and
// of the files above it. They never change once made.
type ignores struct {
	dir   []string // the directory's path, name by name
	rules []gitignore.Pattern
}

// newIgnores loads the rules above and in the directory start. Where they leave
// out start itself, which the caller named, it returns nil: nothing is left out.
func newIgnores(ctx context.Context, r workspace.View, start string) workspace.Rules {
	load := func(dir string) []byte {
		f, err := r.ReadFile(ctx, path.Join(dir, ignoreFile), 0, ignoreFileBytes)
		if err != nil {
			return nil // one that can't be read leaves out nothing
		}
		return f.Data
	}
	i := (&ignores{}).enterDirectory(".", load("."))
	if start == "." {
		return i
	}
	for dir, names := ".", strings.Split(start, "/"); len(names) > 0; names = names[1:] {
		if i.Skip(dir, names[0], true) {
			return nil
		}
		dir = path.Join(dir, names[0])
		i = i.enterDirectory(dir, load(dir))
	}
	return i
}

// Enter returns the rules for a directory with the file of rules given, which
// counts as far as the bounds allow.
func (i *ignores) Enter(dir string, file []byte) workspace.Rules { return i.enterDirectory(dir, file) }

func (i *ignores) enterDirectory(dir string, file []byte) *ignores {
	below := &ignores{rules: slices.Clip(i.rules)} // those above are not to be written to
	if dir != "." {
		below.dir = strings.Split(dir, "/")
	}
	for line := range strings.Lines(string(file)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' || len(line) > ignoreLineBytes {
			continue
		}
		if len(below.rules) == maxIgnoreRules {
			break
		}
		below.rules = append(below.rules, gitignore.ParsePattern(line, below.dir))
	}
	return below
}

// Skip reports whether the rules leave out an entry of the directory. They
// always leave out .git.
func (i *ignores) Skip(_, name string, isDir bool) bool {
	if name == ".git" {
		return true
	}
	if len(i.rules) == 0 {
		return false
	}
	return gitignore.NewMatcher(i.rules).Match(append(slices.Clip(i.dir), name), isDir)
}
