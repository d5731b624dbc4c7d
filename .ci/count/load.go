package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
)

// A packageCount is the figures of one package, named by its path in the module.
type packageCount struct {
	path string
	figures
	// widest is the type with the most methods.
	widest string
}

// load lists, parses and type-checks the packages, and counts them.
func load(goTool string, patterns []string) ([]packageCount, error) {
	packages, exports, err := listPackages(goTool, patterns...)
	if err != nil {
		return nil, err
	}
	var counts []packageCount
	for _, p := range packages {
		c, err := countPackage(p, exports)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		counts = append(counts, c)
	}
	return counts, nil
}

func countPackage(p goPackage, exports exportFiles) (packageCount, error) {
	c := packageCount{path: p.ImportPath}
	if p.Module != nil {
		c.path = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")
	}
	if c.path == "" {
		c.path = "."
	}
	fset := token.NewFileSet()
	var all []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return c, err
		}
		all = append(all, file)
		if !ast.IsGenerated(file) {
			c.countFile(fset, file)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: exports.newImporter(fset)}
	pkg, err := config.Check(p.ImportPath, fset, all, info)
	if err != nil {
		return c, err
	}
	c.countTypes(pkg)
	c.references, c.upward = countReferences(fset, pkg, info)
	return c, nil
}

// countTypes counts the methods of each type of a package.
func (c *packageCount) countTypes(pkg *types.Package) {
	for _, name := range pkg.Scope().Names() {
		named, ok := pkg.Scope().Lookup(name).Type().(*types.Named)
		if _, isType := pkg.Scope().Lookup(name).(*types.TypeName); ok && isType && named.NumMethods() > c.methods {
			c.methods, c.widest = named.NumMethods(), name
		}
	}
}
