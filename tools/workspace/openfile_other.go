//go:build !unix

package workspace

import (
	"io/fs"
	"os"
	"path/filepath"
)

// openIn opens a file in a directory.
func openIn(dir *os.File, name string, flags int, mode fs.FileMode) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &Error{Kind: KindEscape, Path: path, Detail: "is no regular file"}
	}
	return os.OpenFile(path, flags, mode)
}
