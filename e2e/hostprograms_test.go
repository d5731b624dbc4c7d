package e2e

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// startsPrograms are the files that start programs of the host without programs.Command, and
// which ones.
var startsPrograms = map[string]string{
	"sandbox/programs/host.go":              "those that are looked up there",
	"sandbox/oci/runtime.go":                "an absolute path of programs.Finder",
	"images/store/build.go":                 "an absolute path of programs.Finder",
	"sandbox/internal/workmount/userns.go":  "an absolute path of programs.Finder",
	"sandbox/docker/backend.go":             "an absolute path of the engine's configuration",
	"cmd/caisson/internal/detach/detach.go": "this program",
	"sandbox/oci/namespaces.go":             "none: it does not exist",
}

// TestHostPrograms: all programs that run on the host are found by one lookup, which finds none
// of the workspace. The guest, whose programs run in the sandbox, and helpers of tests don't
// count.
func TestHostPrograms(t *testing.T) {
	if got := startsOf(t, "control.go", `package p; import ("os"; run "os/exec"); var _, _ = run.Command("a"), os.StartProcess; var _ = run.Cmd{}; var _ *run.Cmd`); len(got) != 3 {
		t.Fatalf("control: %q", got)
	}
	expected := maps.Clone(startsPrograms)
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel("..", name)
		switch {
		case err != nil || relErr != nil:
			return errors.Join(err, relErr)
		case entry.IsDir() && rel != "." && (skippedFolder(name, entry.Name()) || strings.HasSuffix(rel, "test") || rel == "cmd/caisson-guest" || slices.Contains(unranked, rel)):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		found := startsOf(t, name, nil)
		if len(found) > 0 && startsPrograms[rel] == "" {
			t.Errorf("%s: %s: use programs.Command", rel, strings.Join(found, ", "))
		} else if len(found) > 0 {
			delete(expected, rel)
		}
		return nil
	})
	if err != nil || len(expected) > 0 {
		t.Errorf("%v; no programs are started in %q", err, expected)
	}
}

// startsOf returns what starts a program in a file, or looks one up.
func startsOf(t *testing.T, name string, src any) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, spec := range file.Imports {
		to := strings.Trim(spec.Path.Value, `"`)
		local := path.Base(to)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		names[local] = to
	}
	look := func(e ast.Expr, suffix string, starting ...string) {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			return
		}
		if of, ok := s.X.(*ast.Ident); ok && slices.Contains(starting, names[of.Name]+"."+s.Sel.Name) {
			found = append(found, of.Name+"."+s.Sel.Name+suffix)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			look(n, "", "os/exec.Command", "os/exec.CommandContext", "os/exec.LookPath", "os.StartProcess",
				"syscall.Exec", "syscall.ForkExec", "syscall.StartProcess", "golang.org/x/sys/unix.Exec")
		case *ast.CompositeLit:
			look(n.Type, "{}", "os/exec.Cmd")
		}
		return true
	})
	return found
}
