//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// directoryIdentity returns what tells a directory from all others.
func directoryIdentity(_ string, info fs.FileInfo) (string, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.ErrUnsupported
	}
	return fmt.Sprint(st.Dev, " ", st.Ino), nil
}
