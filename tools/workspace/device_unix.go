//go:build unix && !linux

package workspace

import (
	"io/fs"
	"syscall"
)

// sameDevice reports whether two files are on the same device.
func sameDevice(a, b fs.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, also := b.Sys().(*syscall.Stat_t)
	return ok && also && x.Dev == y.Dev
}
