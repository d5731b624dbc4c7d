package pool

import (
	"os"
	"path/filepath"
)

// identityOf says which folder a descriptor is: its resolved path.
func identityOf(f *os.File) (string, error) { return filepath.EvalSymlinks(f.Name()) }

func duplicate(f *os.File) (*os.File, error) { return os.Open(f.Name()) }
