//go:build !linux

package ownership

import (
	"os"
	"path/filepath"
)

func openSessionDir(stateDir, dir string) (*os.File, error) {
	return os.Open(filepath.Join(stateDir, filepath.FromSlash(dir)))
}

func existsBelow(base *os.File, name string) bool {
	_, err := os.Lstat(filepath.Join(base.Name(), filepath.FromSlash(name)))
	return err == nil
}
