package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of the scripts whose content an approval of a command covers.
const (
	maxScripts     = 32
	maxScriptBytes = 4 << 20
)

// ProjectCommands returns what an approval of commands covers beside their text:
// the identity of the directory dir that they run in, and the content of the
// workspace files that they name as scripts, whether these are there or not. dir
// is relative to the workspace; view reads it. It fails where dir goes through a
// symlink or is no directory: nothing is then covered.
func ProjectCommands(ctx context.Context, view workspace.View, dir string, commands []string) (Projection, error) {
	sum := sha256.New()
	if err := identifyDir(ctx, view, dir, sum); err != nil {
		return Projection{}, err
	}
	var shown Projection
	var names, builders []string
	for _, command := range commands {
		scripts, builds := commandScripts(command, 0)
		names, builders = append(names, scripts...), append(builders, builds...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	room := int64(maxScriptBytes)
	for i, name := range names {
		at := name
		if !path.IsAbs(name) {
			at = path.Join(dir, name)
		}
		state, used, err := identifyScript(ctx, view, at, room)
		switch {
		case err != nil:
			return Projection{}, err
		case i >= maxScripts || state == "":
			shown.NotCovered = append(shown.NotCovered, name)
			continue
		case used > 0:
			shown.Covers = append(shown.Covers, at)
		}
		room -= used
		fmt.Fprintf(sum, "%q %s\n", at, state)
	}
	slices.Sort(builders)
	for _, name := range slices.Compact(builders) {
		shown.NotCovered = append(shown.NotCovered, "the files that "+name+" runs")
	}
	if len(names) > 0 || path.Clean(dir) != "." {
		shown.State = hex.EncodeToString(sum.Sum(nil))
	}
	return shown, nil
}

// identifyDir writes what identifies a directory, of which no element may be a
// symlink.
func identifyDir(ctx context.Context, view workspace.View, dir string, sum hash.Hash) error {
	rel, err := view.Relative(dir)
	if err != nil {
		return fmt.Errorf("identify directory: %w", err)
	}
	at := "."
	for name := range strings.SplitSeq(rel, "/") {
		at = path.Join(at, name)
		info, err := view.Lstat(ctx, at)
		if err != nil {
			return fmt.Errorf("identify directory: %w", err)
		}
		if info.Type != workspace.TypeDir {
			return fmt.Errorf("identify directory: %w", &workspace.Error{Kind: workspace.KindInvalid, Path: at, Detail: fmt.Sprintf("is a %s, no directory", info.Type)})
		}
		fmt.Fprintf(sum, "%q %d\n", at, info.Inode)
	}
	return nil
}

// identifyScript returns what identifies a file's content, and its size in
// bytes; "" where it is larger than room. A name of no file has a state as well:
// one that comes later was not shown.
func identifyScript(ctx context.Context, view workspace.View, at string, room int64) (state string, used int64, err error) {
	f, err := view.ReadFile(ctx, at, 0, max(room, 1))
	var refused *workspace.Error
	switch {
	case errors.As(err, &refused):
		return string(refused.Kind), 0, nil
	case err != nil:
		err = fmt.Errorf("identify script: %w", err)
	case !f.Truncated:
		state, used = hexSum(f.Data), max(int64(len(f.Data)), 1)
	}
	return state, used, err
}

// commandScripts returns the words of a script that name what its commands run:
// commands with a slash, and the arguments of shells and interpreters. builders
// are the commands that run what files of the workspace say without naming them.
func commandScripts(script string, depth int) (names, builders []string) {
	if depth > maxDangerousDepth || len(script) > maxDangerousBytes {
		return nil, nil
	}
	file, _ := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(markControls(script)), "") // what was parsed until an error
	add := func(word string) {
		if word != "" && len(word) <= workspace.MaxPathBytes && !strings.HasPrefix(word, "-") && !strings.ContainsAny(word, "\x00\n") {
			names = append(names, word)
		}
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if stmt, ok := n.(*syntax.Stmt); ok {
			for _, r := range stmt.Redirs {
				if call, ok := stmt.Cmd.(*syntax.CallExpr); ok && r.Op == syntax.RdrIn && len(call.Args) > 0 && isRunner(wordText(call.Args[0])) {
					add(wordText(r.Word)) // sh <run.sh
				}
			}
		}
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		words := wordTexts(call.Args)
		if strings.Contains(words[0], "/") {
			add(words[0])
		}
		if buildsProjects(path.Base(words[0])) {
			builders = append(builders, path.Base(words[0]))
		}
		if !isRunner(words[0]) {
			return true
		}
		for i, word := range words[1:min(len(words), maxRunnerWords)] {
			add(word)
			if buildsProjects(word) && !takesNames(path.Base(words[0])) {
				builders = append(builders, word)
			}
			if takesScripts(path.Base(words[0])) && strings.ContainsAny(word, " \n;&|") || words[i] == "-c" {
				inner, more := commandScripts(word, depth+1)
				names, builders = append(names, inner...), append(builders, more...)
			}
		}
		return true
	})
	return names, builders
}

// buildsProjects reports whether a command runs what files of a project say.
func buildsProjects(name string) bool {
	return slices.Contains([]string{
		"ant", "bazel", "bun", "bundle", "cargo", "cmake", "composer", "ctest", "dotnet", "go", "gradle", "gradlew", "just", "make", "meson", "mvn", "mvnw", "ninja",
		"npm", "npx", "nox", "pnpm", "poetry", "pre-commit", "pytest", "rake", "sbt", "task", "tox", "uv", "yarn",
	}, name)
}
