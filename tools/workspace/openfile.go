package workspace

import (
	"io/fs"
	"os"
	"path/filepath"
)

// OpenFile opens a file that may be in a workspace, as [os.OpenFile] does. It finds the
// file's directory as [OpenDir] does, refuses a symlink, and doesn't wait for the other
// end of a pipe.
func OpenFile(path string, flags int, mode fs.FileMode) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := OpenDir(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // only held
	return openIn(dir, filepath.Base(abs), flags, mode)
}
