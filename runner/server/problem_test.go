//go:build linux

package server

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner"
)

// TestProblemsSpeakToClients puts every text of the program that names a flag or
// a command into a problem, as cause and as hint: a client sees neither.
func TestProblemsSpeakToClients(t *testing.T) {
	commandLine := regexp.MustCompile(`(^|[\s("'])--[a-z]|\bcaisson [a-z]+ `)
	texts := 0
	for _, dir := range []string{"runner", "sandbox", "images", "tools", filepath.Join("cmd", "caisson")} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil || !commandLine.MatchString(text) || strings.Contains(text, "\n") {
					return true
				}
				texts++
				got := clientProblem(runner.Problem{Cause: "the image can't be used with --image", Mend: text}, askOtherwise)
				if commandLine.MatchString(got.Mend) || strings.Contains(got.Cause, "--") || got.Mend == "" {
					t.Errorf("%q becomes %+v", text, got)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if texts < 50 { // the control
		t.Errorf("%d texts name a flag or a command", texts)
	}
	for text, want := range map[string]string{
		"Look at the engine or runtime (caisson doctor), and run the task again. What was done is in the workspace.": "What was done is in the workspace.",
		"Make room on that file system; what was written before can be read.":                                        "Make room on that file system. What was written before can be read.",
		"Take --mode bind, on a copy of the folder if need be.":                                                      askOtherwise,
		"": askOtherwise,
	} {
		if got := clientProblem(runner.Problem{Mend: text}, askOtherwise).Mend; got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
