package pool

import (
	"os"
	"path/filepath"
)

// dirIdentity returns a string that identifies the directory of a descriptor:
// its resolved path.
func dirIdentity(f *os.File) (string, error) { return filepath.EvalSymlinks(f.Name()) }

// duplicateFile opens the file a second time.
func duplicateFile(f *os.File) (*os.File, error) { return os.Open(f.Name()) }
