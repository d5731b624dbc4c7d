package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
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

type listedPackage struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
	DepOnly                 bool
	Module                  *struct{ Path string }
}

// load lists, parses and type-checks the packages, and counts them.
func load(goTool string, patterns []string) ([]packageCount, error) {
	args := append([]string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly,Module"}, patterns...)
	list := exec.Command(goTool, args...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	exports := map[string]string{}
	var listed []listedPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listedPackage
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly && len(l.GoFiles) > 0 {
			listed = append(listed, l)
		}
	}
	var counts []packageCount
	for _, l := range listed {
		c, err := l.count(exports)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.ImportPath, err)
		}
		counts = append(counts, c)
	}
	return counts, nil
}

func (l listedPackage) count(exports map[string]string) (packageCount, error) {
	c := packageCount{path: l.ImportPath}
	if l.Module != nil {
		c.path = strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, l.Module.Path), "/")
	}
	if c.path == "" {
		c.path = "."
	}
	fset := token.NewFileSet()
	var all []*ast.File
	for _, name := range l.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(l.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return c, err
		}
		all = append(all, file)
		if !ast.IsGenerated(file) {
			c.countFile(fset, file)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})}
	pkg, err := config.Check(l.ImportPath, fset, all, info)
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
