package ownership

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Unmount removes a mount below base and the empty file or directory that it
// was on. No part of the path may be a symlink. A name without a mount is not
// an error.
func Unmount(base *os.File, name string) error {
	parent, err := openBeneath(int(base.Fd()), path.Dir(name))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", name, err)
	}
	defer unix.Close(parent)
	target := fmt.Sprintf("/proc/self/fd/%d/%s", parent, path.Base(name))
	for {
		// MNT_DETACH: a container that still starts may hold it for a moment.
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			break // no mount, or none any more; one that may not be removed fails below with EBUSY
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", name, err)
		}
	}
	err = unix.Unlinkat(parent, path.Base(name), unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTDIR) {
		err = removeEmptyFile(parent, path.Base(name))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove mount point %s: %w", name, err)
	}
	return nil
}

// removeEmptyFile removes the mount point of a bound file and nothing else.
func removeEmptyFile(parent int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return fmt.Errorf("is not an empty file")
	}
	return unix.Unlinkat(parent, name, 0)
}
