//go:build !linux

package ownership

import "os"

// Unmount removes a mount below base and the empty file or directory that it
// was on. No part of the path may be a symlink. A name without a mount is not
// an error.
func Unmount(*os.File, string) error { return nil }
