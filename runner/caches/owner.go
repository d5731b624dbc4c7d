package caches

import (
	"io/fs"
	"os"
	"syscall"
)

// setOwner makes a directory belong to the owner of the workspace. Only root can; others
// own their workspaces, or accept that new files are theirs.
func setOwner(dir *os.File, owner Owner) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return dir.Chown(owner.UID, owner.GID)
}

// OwnerOf returns the owner of a file.
func OwnerOf(info fs.FileInfo) Owner {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return Owner{int(stat.Uid), int(stat.Gid)}
	}
	return Owner{}
}
