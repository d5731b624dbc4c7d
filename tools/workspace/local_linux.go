package workspace

import "golang.org/x/sys/unix"

// isLocal says whether a folder is on a file system of this machine's own
// kernel and disks. Network and FUSE file systems are not, nor is overlayfs,
// whose layers may be on one of those.
func isLocal(fd int) bool {
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return false
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, zfsMagic, bcachefsMagic:
		return true
	}
	return false
}

// Magic numbers that x/sys does not name: ZFS (include/os/linux/zfs/sys in
// openzfs/zfs) and bcachefs (BCACHEFS_STATFS_MAGIC).
const (
	zfsMagic      = 0x2fc12fc1
	bcachefsMagic = 0xca451a4e
)
