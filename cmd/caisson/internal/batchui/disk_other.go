//go:build !unix

package batchui

// FreeDisk returns 0: the free space is unknown here.
func FreeDisk(string) int64 { return 0 }
