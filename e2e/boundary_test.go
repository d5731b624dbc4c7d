package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// boundaryConversions are the functions that make text for a model without a wrapper, and
// how often.
var boundaryConversions = map[string]int{
	// Of a Text.
	"loop.NewText": 1,
	// Of Caisson's constants, with numbers and names that are its own.
	"loop.SystemPrompt":         1,
	"loop.closeLimitMessage":    1,
	"loop.closingStep":          1,
	"runner.EndBackground":      1,
	"loop.redactCanaries":       1, // the model's text, without IDs
	"runner.forkNotice":         1,
	"runner.instructionMessage": 1,
	"runner.noticeOf":           1,
	"runner.settleChanges":      1,
	// Of programs' own conversations, for the records: no model is sent them.
	"runner/bridge/transcript.Add":     1,
	"runner/bridge/transcript.addText": 1,
	// Of the words of the user and the operator, and of files that the user trusts.
	"runner.addSkills":       1,
	"runner.addTrusted":      1,
	"runner.loadContext":     3,
	"runner.openingMessages": 1,
	// Of the definitions of offered tools.
	"loop/tags.describeTools": 1,
	// Of what a model answered.
	"cmd/caisson.endRecords":       1, // for records alone
	"loop/anthropic.buildResponse": 1,
	"loop/ollama.buildResponse":    1,
	"loop/openai.buildResponse":    1,
	"loop/openai.makeBlock":        1,
	"loop/replay.buildBlocks":      1,
	"loop/tags.parseMessage":       1,
	// Of messages that passed the boundary before.
	"loop/tags.renderBlock":    1,
	"loop/tags.renderMessages": 1,
	// Of a worker's question and its results, which isolate wraps.
	"loop/worker.requestAnswer": 2,
}

// TestPromptBoundary checks that no source of text for a model bypasses the boundary: each
// conversion to boundary.Text of what is no constant, and each literal of loop.Text, is in
// the list.
func TestPromptBoundary(t *testing.T) {
	got := map[string]int{}
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != ".." && (skippedFolder(name, entry.Name()) || entry.Name() == "boundary" || strings.HasSuffix(entry.Name(), "test")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel("..", filepath.Dir(name))
		countConversions(file, filepath.ToSlash(dir), got)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(boundaryConversions, got); diff != "" {
		t.Errorf("conversions to text for a model (-listed +found); wrap untrusted text by boundary.Wrap, list trusted text:\n%s", diff)
	}
}

// TestPromptBoundaryCatches is the positive control: a bypass is found.
func TestPromptBoundaryCatches(t *testing.T) {
	const source = `package p
func f(page string) { loop.NewText(loop.RoleUser, boundary.Text(page)); _ = boundary.Text("constant") }
func g(page string) { _ = loop.Block{Text: &loop.Text{Text: page}} }
func h(b *loop.Block, page string) { b.Text.Text = page }
func i(page string) { _ = boundary.Wrap(page) }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	countConversions(file, "p", got)
	if diff := cmp.Diff(map[string]int{"p.f": 1, "p.g": 1, "p.h": 1}, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

// countConversions adds what makes text for a model in a file, by package and function.
func countConversions(file *ast.File, dir string, found map[string]int) {
	isName := func(e ast.Expr, pkg, name string) bool {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			id, isIdent := e.(*ast.Ident)
			return isIdent && id.Name == name && dir == pkg
		}
		x, ok := s.X.(*ast.Ident)
		return ok && x.Name == pkg && s.Sel.Name == name
	}
	for _, decl := range file.Decls {
		name := dir + "."
		if f, ok := decl.(*ast.FuncDecl); ok {
			name += f.Name.Name
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			bypasses := false
			switch n := n.(type) {
			case *ast.CallExpr:
				if len(n.Args) == 1 && isName(n.Fun, "boundary", "Text") {
					_, constant := n.Args[0].(*ast.BasicLit)
					bypasses = !constant
				}
			case *ast.CompositeLit:
				bypasses = isName(n.Type, "loop", "Text")
			case *ast.AssignStmt:
				for _, l := range n.Lhs {
					s, ok := l.(*ast.SelectorExpr)
					if !ok || s.Sel.Name != "Text" {
						continue
					}
					inner, ok := s.X.(*ast.SelectorExpr)
					bypasses = bypasses || ok && inner.Sel.Name == "Text"
				}
			}
			if bypasses {
				found[name]++
			}
			return true
		})
	}
}
