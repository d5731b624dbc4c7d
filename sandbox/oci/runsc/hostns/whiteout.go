package hostns

import (
	"slices"

	"golang.org/x/sys/unix"
)

// IsLayer reports whether an OCI mount with these options is a layer of an
// overlay. Only they have whiteouts.
func IsLayer(options []string) bool { return slices.Contains(options, "caisson.layer") }

// The attributes of overlays that are mounted with userxattr
// (Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories").
const (
	whiteoutXattr = "user.overlay.whiteout"
	opaqueXattr   = "user.overlay.opaque"
)

// MakeWhiteout makes name in an open directory a whiteout: a device, or if the
// file system has none, an empty file with an attribute, which Linux knows from
// 6.7 on. A container's own root is such a file system.
func MakeWhiteout(dir int, name string) error {
	err := unix.Mknodat(dir, name, unix.S_IFCHR, 0)
	if err == nil || err == unix.EEXIST {
		return err
	}
	fd, fileErr := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if fileErr != nil {
		return err
	}
	defer unix.Close(fd)
	if fileErr = unix.Fsetxattr(fd, whiteoutXattr, []byte("y"), 0); fileErr != nil {
		_ = unix.Unlinkat(dir, name, 0)
		return err
	}
	// Linux looks for attributes only in marked directories. An opaque one is
	// marked already, and nobody but Linux needs it.
	_ = unix.Fsetxattr(dir, opaqueXattr, []byte("x"), unix.XATTR_CREATE)
	return nil
}

// IsWhiteout reports whether an empty regular file is a whiteout. Flags may have
// O_NOFOLLOW.
func IsWhiteout(dir int, name string, flags int) bool {
	fd, err := unix.Openat(dir, name, flags|unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Fgetxattr(fd, whiteoutXattr, nil)
	return err == nil
}
