//go:build !linux

package ownership

import "os"

// Unmount removes a mount below base and the empty file or directory that it
// was on. No part of the path may be a symlink. A name without a mount is not
// an error.
func Unmount(*os.File, string) error { return nil }

// RemoveTree removes a directory below base with everything in it, without
// following symlinks.
func RemoveTree(base *os.File, name string) error {
	root, err := os.OpenRoot(base.Name())
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(name)
}
