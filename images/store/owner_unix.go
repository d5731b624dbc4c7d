//go:build unix

package store

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/caisson-run/caisson/images"
)

// checkOwner refuses a directory that another user could write to, because the
// store trusts its own content.
func checkOwner(dir string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("image store %s: %w: owned by uid %d: use a directory of your own", dir, images.ErrInvalid, st.Uid)
	case info.Mode()&0o022 != 0:
		return fmt.Errorf("image store %s: %w: writable by others (mode %v): use chmod go-w", dir, images.ErrInvalid, info.Mode().Perm())
	}
	return nil
}
