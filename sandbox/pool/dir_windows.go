package pool

import (
	"os"
	"path/filepath"
)

// dirIdentity says which folder a descriptor is: its resolved path.
func dirIdentity(f *os.File) (string, error) { return filepath.EvalSymlinks(f.Name()) }

func duplicateFile(f *os.File) (*os.File, error) { return os.Open(f.Name()) }
