package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// freeSpace returns the bytes that this user can still write in a directory.
func freeSpace(dir string) (int64, error) {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return 0, fmt.Errorf("it can't be written: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("its free space is unknown: %w", err)
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil //nolint:unconvert // the types differ between systems
}
