//go:build !linux

package workspace

import "os"

// RemoveTree removes a directory and its content without following symlinks.
func RemoveTree(path string) error { return os.RemoveAll(path) }

// RemoveTreeAt removes a directory below base with everything in it, without following
// symlinks.
func RemoveTreeAt(base *os.File, name string) error {
	root, err := os.OpenRoot(base.Name())
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}
