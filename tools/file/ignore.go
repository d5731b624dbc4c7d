package file

import (
	"bytes"
	"context"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds on .gitignore files: every entry is compared with every pattern of the
// directories above it.
const (
	ignoreFileBytes = 64 << 10
	ignoreLineBytes = 1024
	maxIgnoreRules  = 2000
)

// ignoreFile names the files with rules. They apply from the workspace's top down,
// as git's do in a repository there.
const ignoreFile = ".gitignore"

// ignores are the rules for one directory, from its own file and those above. They
// are immutable.
type ignores struct {
	dir   []string // the directory's path, name by name
	rules []ignoreRule
}

// ignoreRule is a line of a file. A pattern with a slash before its end matches the
// path, any other the name.
type ignoreRule struct {
	gitignore.Pattern
	ofPath bool
}

// newIgnores loads the rules for the directory start. If they exclude start, which
// the caller named, it returns nil: nothing is left out.
func newIgnores(ctx context.Context, r workspace.View, start string) workspace.Rules {
	load := func(dir string) []byte {
		f, err := r.ReadFile(ctx, path.Join(dir, ignoreFile), 0, ignoreFileBytes)
		if err != nil {
			return nil // an unreadable file leaves out nothing
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

// Enter returns the rules for a directory below, whose rules file is given.
func (i *ignores) Enter(dir string, file []byte) workspace.Rules { return i.enterDirectory(dir, file) }

func (i *ignores) enterDirectory(dir string, file []byte) *ignores {
	below := &ignores{rules: slices.Clip(i.rules)} // don't write to the rules above
	if dir != "." {
		below.dir = strings.Split(dir, "/")
	}
	for line := range strings.Lines(string(bytes.TrimPrefix(file, byteOrderMark))) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' || len(line) > ignoreLineBytes {
			continue
		}
		if len(below.rules) == maxIgnoreRules {
			break
		}
		r := ignoreRule{ofPath: strings.Contains(strings.TrimRight(line, "/ \t"), "/")}
		if r.ofPath {
			r.Pattern = gitignore.ParsePattern(line, below.dir)
		} else {
			r.Pattern = gitignore.ParsePattern(line, nil)
		}
		below.rules = append(below.rules, r)
	}
	return below
}

// Skip reports whether the rules exclude an entry of the directory. They always
// exclude .git.
func (i *ignores) Skip(_, name string, isDir bool) bool {
	if name == ".git" {
		return true
	}
	path := append(slices.Clip(i.dir), name)
	for _, r := range slices.Backward(i.rules) { // the last match counts
		of := path
		if !r.ofPath {
			of = path[len(i.dir):]
		}
		if result := r.Match(of, isDir); result != gitignore.NoMatch {
			return result == gitignore.Exclude
		}
	}
	return false
}
