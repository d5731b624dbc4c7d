//go:build unix

package config

import (
	"fmt"
	"os"
	"syscall"
)

// checkOwner refuses a path that somebody other than uid could have written.
func checkOwner(path string, uid int) error {
	info, err := os.Stat(path)
	if err != nil {
		return &Error{Where: path, Message: err.Error(), Mend: "an administrator must mend it; without it nothing runs"}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != uid || info.Mode().Perm()&0o022 != 0 {
		return &Error{
			Where:   path,
			Message: "requirements count only where root alone can write them",
			Mend:    fmt.Sprintf("an administrator must run: chown 0:0 %s && chmod go-w %s", path, path),
		}
	}
	return nil
}
