package main

import (
	"io/fs"
	"path/filepath"
)

// directoryIdentity returns the path of a directory: its number is not in what Lstat returns.
func directoryIdentity(dir string, _ fs.FileInfo) (string, error) { return filepath.Abs(dir) }
