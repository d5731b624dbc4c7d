//go:build !unix

package outfile

import (
	"io/fs"
	"os"
	"path/filepath"
)

// createIn opens or makes a file in a directory. It refuses a link that is there.
func createIn(dir *os.File, name string) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
}

// manyNames can't be told here.
func manyNames(fs.FileInfo) bool { return false }
