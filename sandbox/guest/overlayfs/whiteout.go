package overlayfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// The attributes of overlays with userxattr (overlayfs.rst, "whiteouts and
// opaque directories").
const (
	// OpaqueAttribute marks a directory of an upper layer that hides the one below
	// it, if its value is "y".
	OpaqueAttribute   = "user.overlay.opaque"
	whiteoutAttribute = "user.overlay.whiteout"
)

var mknodat = unix.Mknodat // replaced by tests

// MakeWhiteout makes name in an open directory a whiteout: a device, or if the
// file system has none, an empty file with an attribute, which Linux knows from
// 6.7 on. A container's own root is such a file system. The gofer of our runsc
// makes the same ones; it is a module of its own and has a copy of this
// (sandbox/oci/runsc/hostns).
func MakeWhiteout(dir int, name string) error {
	err := mknodat(dir, name, unix.S_IFCHR, 0)
	if err == nil || errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, fileErr := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if fileErr != nil {
		return err
	}
	defer unix.Close(fd)
	if fileErr = unix.Fsetxattr(fd, whiteoutAttribute, []byte("y"), 0); fileErr != nil {
		_ = unix.Unlinkat(dir, name, 0) // the first error counts
		return err
	}
	// Linux looks for attributes only in marked directories. An opaque one is
	// marked already, and nobody but Linux needs it.
	_ = unix.Fsetxattr(dir, OpaqueAttribute, []byte("x"), unix.XATTR_CREATE)
	return nil
}

// IsWhiteout reports whether an empty regular file in an open directory of a
// layer is a whiteout.
func IsWhiteout(dir int, name string) bool {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Fgetxattr(fd, whiteoutAttribute, nil)
	return err == nil
}
