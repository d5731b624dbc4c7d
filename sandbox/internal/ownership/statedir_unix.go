//go:build unix

package ownership

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

func checkPrivate(info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", info.Name())
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("owner of %s is not known", info.Name())
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, not to uid %d: use a directory of your own", info.Name(), st.Uid, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s has mode %#o and can be written by others: chmod go-w it", info.Name(), info.Mode().Perm())
	}
	return nil
}
