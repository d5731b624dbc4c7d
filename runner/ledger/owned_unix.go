//go:build unix

package ledger

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// checkOwned returns an error unless path is a directory, or a regular file, of the
// caller that no other user can write.
func checkOwned(path string, dir bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case dir && !info.IsDir():
		return errors.New("it is not a directory")
	case !dir && !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case !ok || int(stat.Uid) != os.Geteuid():
		return errors.New("it belongs to another user")
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("it has mode %#o, and others can write it", info.Mode().Perm())
	}
	return nil
}
