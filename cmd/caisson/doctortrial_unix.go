//go:build unix

package main

import (
	"os"
	"syscall"
)

// sameFileSystem reports whether two directories are on one file system.
func sameFileSystem(a, b string) bool {
	x, y := statusOf(a), statusOf(b)
	return x != nil && y != nil && x.Dev == y.Dev
}

// takeOwner gives path the owner of another directory, which root can.
func takeOwner(path, of string) error {
	st := statusOf(of)
	if st == nil || os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}

func statusOf(path string) *syscall.Stat_t {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return st
}
