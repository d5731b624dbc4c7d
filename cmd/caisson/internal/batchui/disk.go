package batchui

import (
	"path/filepath"
	"syscall"
)

// FreeDisk returns the bytes that are free where a directory is or will be, 0 if that is
// unknown.
func FreeDisk(dir string) int64 {
	for ; ; dir = filepath.Dir(dir) {
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err == nil {
			return int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // their types differ between systems
		}
		if dir == filepath.Dir(dir) {
			return 0
		}
	}
}
