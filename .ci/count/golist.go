package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
)

// goPackage is a package as go list prints it.
type goPackage struct {
	Dir, Name, ImportPath, Export string
	GoFiles                       []string
	DepOnly                       bool
	Module                        *struct{ Path, Dir string }
}

// exportFiles holds the files with the export data of packages, by import path.
type exportFiles map[string]string

// listPackages returns the packages that the patterns match and have Go files, and the
// export data of these and of all that they import.
func listPackages(goTool string, patterns ...string) ([]goPackage, exportFiles, error) {
	args := append([]string{"list", "-export", "-deps", "-json=Dir,Name,ImportPath,Export,GoFiles,DepOnly,Module"}, patterns...)
	cmd := exec.Command(goTool, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("go list %v: %w", patterns, err)
	}
	var packages []goPackage
	exports := exportFiles{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, exports, nil
		} else if err != nil {
			return nil, nil, fmt.Errorf("read the list of packages: %w", err)
		}
		if p.Export != "" {
			exports[p.ImportPath] = p.Export
		}
		if !p.DepOnly && len(p.GoFiles) > 0 {
			packages = append(packages, p)
		}
	}
}

// newImporter returns an importer that reads the export data.
func (e exportFiles) newImporter(fset *token.FileSet) types.Importer {
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if e[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(e[path])
	})
}
