//go:build linux

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"

	"github.com/caisson-run/caisson/ci/golist"
)

// A sourceFile is a file of the package under test and the edits of its mutants.
type sourceFile struct {
	path  string
	text  []byte
	edits []edit
}

// A program is the package under test.
type program struct {
	Dir, Name, ImportPath string
	Module                string
	files                 []*sourceFile
	mutants               []*mutant
	exports               golist.Exports
}

// load lists and parses a package and finds the mutants in its files that match.
func load(goTool, pattern string, match *regexp.Regexp) (*program, error) {
	packages, exports, err := golist.List(goTool, pattern)
	if err != nil {
		return nil, err
	}
	if len(packages) != 1 {
		return nil, fmt.Errorf("%s matches %d packages, want one", pattern, len(packages))
	}
	l := packages[0]
	p := &program{Dir: l.Dir, Name: l.Name, ImportPath: l.ImportPath, exports: exports}
	if l.Module != nil {
		p.Module = l.Module.Dir
	}
	return p, p.findMutants(l.GoFiles, match)
}

func (p *program) findMutants(names []string, match *regexp.Regexp) error {
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range names {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.files = append(p.files, &sourceFile{path: path, text: text})
		parsed = append(parsed, file)
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Uses:  map[*ast.Ident]types.Object{},
		Defs:  map[*ast.Ident]types.Object{},
	}
	config := types.Config{Importer: p.exports.Importer(fset)}
	pkg, err := config.Check(p.ImportPath, fset, parsed, info)
	if err != nil {
		return err
	}
	for i, file := range parsed {
		rel, err := filepath.Rel(p.Module, p.files[i].path)
		if err != nil {
			return err
		}
		if ast.IsGenerated(file) || !match.MatchString(rel) {
			continue
		}
		f := &finder{program: p, source: p.files[i], name: rel, tokens: fset.File(file.Pos()), info: info, pkg: pkg}
		f.findAll(file)
	}
	return nil
}

// dropInvalid drops the mutants that don't compile: after each check the
// innermost mutant around each error.
func (p *program) dropInvalid() error {
	for {
		found, err := p.check()
		if err != nil || len(found) == 0 {
			return err
		}
		for _, e := range found {
			m := p.innermost(e.path, e.offset)
			if m == nil {
				return fmt.Errorf("rewritten source does not compile outside of the mutants: %s", e.text)
			}
			m.dropped = true
		}
	}
}

type compileError struct {
	path   string
	offset int
	text   string
}

// check type-checks the rewritten sources.
func (p *program) check() ([]compileError, error) {
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, f := range p.files {
		file, err := parser.ParseFile(fset, f.path, f.render(), parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("rewritten source: %w", err)
		}
		parsed = append(parsed, file)
	}
	file, err := parser.ParseFile(fset, runtimeName, runtimeSource(p.Name, len(p.mutants)), parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	// The rest of the runtime file is known to compile; what it imports may be
	// no dependency of the package.
	file.Decls = file.Decls[1:]
	file.Imports = nil
	stripRuntime(file)
	var found []compileError
	config := types.Config{Importer: p.exports.Importer(fset), Error: func(err error) {
		var e types.Error
		if errors.As(err, &e) {
			pos := fset.Position(e.Pos)
			found = append(found, compileError{pos.Filename, pos.Offset, e.Error()})
		}
	}}
	_, _ = config.Check(p.ImportPath, fset, append(parsed, file), nil)
	return found, nil
}

// stripRuntime leaves of the runtime file what needs no import.
func stripRuntime(file *ast.File) {
	kept := file.Decls[:0]
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.Name == "mutantInit" {
				continue
			}
			if d.Name.Name == "mutantOn" {
				d.Body.List = d.Body.List[len(d.Body.List)-1:]
				d.Body.List[0].(*ast.ReturnStmt).Results[0] = ast.NewIdent("false")
			}
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				continue
			}
		}
		kept = append(kept, d)
	}
	file.Decls = kept
}

func (p *program) innermost(path string, offset int) *mutant {
	var best *mutant
	for _, m := range p.mutants {
		if m.dropped || m.file.path != path || offset < m.begin || offset > m.end {
			continue
		}
		if best == nil || m.end-m.begin < best.end-best.begin {
			best = m
		}
	}
	return best
}
