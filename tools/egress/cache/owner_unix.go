//go:build unix

package cache

import (
	"fmt"
	"os"
	"syscall"
)

// checkOwner returns an error if another user of the machine can write to a directory:
// entries have no secret that shows who wrote them.
func checkOwner(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("open a cache: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("open a cache: another user can write to %s", dir)
	}
	return nil
}
