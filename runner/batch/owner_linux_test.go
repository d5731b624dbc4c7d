package batch_test

import (
	"os"
	"syscall"
)

// ownerOf returns the user id of a file's owner.
func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
