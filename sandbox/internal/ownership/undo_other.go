//go:build !linux

package ownership

import "os"

// Unmount does nothing: Caisson mounts on Linux only.
func Unmount(*os.File, string) error { return nil }

// RemoveTree removes a folder below base and all that is in it, without
// following links.
func RemoveTree(base *os.File, name string) error {
	root, err := os.OpenRoot(base.Name())
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}
