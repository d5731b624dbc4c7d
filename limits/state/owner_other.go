//go:build !unix

package state

import "io/fs"

const noFollow = 0

// UnsafeReason returns "": access lists protect the directories of users here.
func UnsafeReason(fs.FileInfo) string { return "" }
