package e2e

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// commandLineText matches a flag, or the program's name before a word.
var commandLineText = regexp.MustCompile(`(^|[\s("'])--[a-z][a-z-]*|(^|[\s("'])caisson [a-z]+`)

// textExceptions are the packages whose literals may match because they are no texts
// for people.
var textExceptions = []struct{ file, literal, why string }{
	{"", `docker run --(memory|pids-limit)`, "options of docker, for the container around Caisson"},
	{"images/dockerfile/", `^RUN %s: the only option of RUN `, "an option of RUN in Dockerfiles"},
	{"images/store/", `^--[a-z-]+$`, "arguments of buildctl and buildah"},
	{"loop/internal/aimocktest/", `^--[a-z-]+(=\S*)?$`, "arguments of npm and llmock, in a package for tests"},
	{"runner/batch/place.go", `^--[a-z-]+=?1?$`, "arguments of git"},
	{"runner/trace/diff.go", `^diff --git $`, "the format of git"},
	{"sandbox/docker/", `^--version$`, "an argument of docker"},
	{"sandbox/oci/", `^--[a-z0-9-]+(=\S*)?$`, "arguments of runsc and runc"},
	{"sandbox/overlay/diff.go", `^diff --git $`, "the format of git"},
	{"tools/policy/commandoptions.go", `^-`, "options of programs that the policy reads"},
	{"tools/policy/coversearch.go", `^--(chdir|version|help)$`, "flags of programs that the policy reads"},
	{"tools/policy/dangersearch.go", `^--[a-z-]+=?$`, "flags of git and env that the policy reads"},
	{"tools/policy/dangerous.go", `^(rm|git-reset) --[a-z]+\*$`, "rules of the policy"},
}

// TestLibrariesNameNoCommandLine: only cmd names the program's flags and commands. What
// a library reports are facts; its callers find the words for their users.
func TestLibrariesNameNoCommandLine(t *testing.T) {
	used := make([]bool, len(textExceptions))
	for _, text := range libraryTexts(t, "..") {
		if !commandLineText.MatchString(text.literal) {
			continue
		}
		i := slices.IndexFunc(textExceptions, func(e struct{ file, literal, why string }) bool {
			return strings.HasPrefix(text.file, e.file) && regexp.MustCompile(e.literal).MatchString(text.literal)
		})
		if i < 0 {
			t.Errorf("%s:%d: %q names a flag or a command: that is for cmd", text.file, text.line, text.literal)
			continue
		}
		used[i] = true
	}
	for i, e := range textExceptions {
		if !used[i] {
			t.Errorf("the exception %s %s (%s) is not needed any more", e.file, e.literal, e.why)
		}
	}
}

// TestCommandLineText drives texts through the pattern: one that finds none proves
// nothing.
func TestCommandLineText(t *testing.T) {
	for text, want := range map[string]bool{
		"Take --mode bind.": true, "--json": true, "(--json)": true, "Run caisson doctor.": true, "caisson run makes one": true,
		"a -- b": false, "caisson": false, "caisson-guest is missing": false, "the caisson: it": false, "/var/lib/caisson/x": false, "a--b": false,
	} {
		if got := commandLineText.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// libraryText is a string literal of a library.
type libraryText struct {
	file    string
	line    int
	literal string
}

// libraryTexts returns the string literals of the module's libraries.
func libraryTexts(t *testing.T, root string) []libraryText {
	t.Helper()
	var texts []libraryText
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			forTests := slices.Contains([]string{"cmd", "e2e", "sandbox/sandboxtest", "sandbox/internal/worktest", "tools/egress/egresstest"}, rel)
			if rel != "." && (forTests || skippedFolder(name, entry.Name())) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		found, err := literalsOf(name)
		for _, l := range found {
			l.file = rel
			texts = append(texts, l)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// literalsOf returns the string literals of a file.
func literalsOf(name string) ([]libraryText, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var texts []libraryText
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, unquoteErr := strconv.Unquote(lit.Value)
		if unquoteErr != nil {
			err = fmt.Errorf("%s: %w", lit.Value, unquoteErr)
		}
		texts = append(texts, libraryText{line: fset.Position(lit.Pos()).Line, literal: text})
		return true
	})
	return texts, err
}
