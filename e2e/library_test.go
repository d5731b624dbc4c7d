package e2e

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxExampleLines bounds the body of an example of the root package.
const maxExampleLines = 10

// TestLibraryFromAnotherModule builds the examples of the root package in a module of
// their own, as a program that imports Caisson is, and runs them.
func TestLibraryFromAnotherModule(t *testing.T) {
	t.Parallel()
	needBackend(t, "gvisor")
	base := modelServer(t)
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "../example_test.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	dir := emptyModule(t)
	examples := doc.Examples(file)
	if len(examples) != 4 {
		t.Fatalf("%d examples, want 4", len(examples))
	}
	for _, e := range examples {
		t.Run(e.Name, func(t *testing.T) {
			body := e.Code.(*ast.BlockStmt)
			if n := fset.Position(body.End()).Line - fset.Position(body.Pos()).Line - 1; n > maxExampleLines {
				t.Errorf("%d lines, at most %d", n, maxExampleLines)
			}
			var text bytes.Buffer
			if e.Play == nil {
				t.Fatal("it is not a whole program")
			}
			if err := format.Node(&text, fset, e.Play); err != nil {
				t.Fatal(err)
			}
			m := newMachine(t)
			m.tally(t)
			m.env = append(m.env, "OPENAI_API_KEY=test", "OPENAI_BASE_URL="+base+"/v1", "PATH="+binaries(t)+":"+hostPath)
			source := filepath.Join(dir, e.Name)
			writeFile(t, filepath.Join(source, "main.go"), text.Bytes(), 0o644)
			program := filepath.Join(dir, "bin", e.Name)
			build := exec.CommandContext(t.Context(), "go", "install", "./"+e.Name, modulePath+"/cmd/caisson-guest") // as the package comment says
			build.Dir = dir
			build.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "CGO_ENABLED=0", "GOBIN="+filepath.Dir(program))
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s\n%s", err, out, text.String())
			}
			run := exec.CommandContext(t.Context(), program)
			run.Dir, run.Env = m.workspace, m.env
			out, err := run.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want := map[string]string{"NewSandbox": "tally.sh\n", "NewSandbox_caches": "/data\n", "Run": "The tests pass. [tally.sh] <nil>", "Run_tool": "It is forty-two."}[e.Name]
			if want == "" || !strings.Contains(string(out), want) || !strings.Contains(string(out), "<nil>") {
				t.Errorf("output without %q:\n%s", want, out)
			}
		})
	}
}

// maxRootNames bounds the exported names of the root package.
const maxRootNames = 15

// TestRootPackageIsSmall: a newcomer reads its documentation in one go.
func TestRootPackageIsSmall(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	fset := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names = append(names, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names = append(names, s.Name.Name)
					case *ast.ValueSpec:
						for _, id := range s.Names {
							names = append(names, id.Name)
						}
					}
				}
			}
		}
	}
	exported := slices.DeleteFunc(names, func(name string) bool { return !token.IsExported(name) })
	if len(exported) == 0 || len(exported) > maxRootNames {
		t.Errorf("%d exported names, at most %d: %q", len(exported), maxRootNames, exported)
	}
}

// emptyModule returns the directory of a module that requires this one.
func emptyModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	mod := readFile(t, "../go.mod")
	text := strings.Replace(string(mod), "module "+modulePath, "module example.com/agent", 1) +
		"\nrequire " + modulePath + " v0.0.0\n\nreplace " + modulePath + " => " + root + "\n"
	writeFile(t, filepath.Join(dir, "go.mod"), text, 0o644)
	sums, err := os.ReadFile("../go.sum")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
