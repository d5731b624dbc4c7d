package outfile

import (
	"io/fs"
	"syscall"
)

// manyNames reports whether a file has more than one hard link.
func manyNames(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink > 1
}
