package images

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// syncTree puts a tree on the disk, so that after a power cut one that has its
// name has its content: one syncfs(2) instead of an fsync for each file.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", dir, err)
	}
	return nil
}
