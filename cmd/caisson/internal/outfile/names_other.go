//go:build !unix

package outfile

import "io/fs"

// manyNames can't be told here.
func manyNames(fs.FileInfo) bool { return false }
