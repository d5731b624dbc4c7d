//go:build !unix

package sessiondir

import "os"

// hold does nothing here, so that every session counts as one that lives.
func hold(*os.File) error { return nil }

func held(*os.File) bool { return true }
