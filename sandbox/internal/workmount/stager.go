package workmount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// mountsDir contains the mount points, below Options.Dir.
const mountsDir = "mounts"

// errNoIDMap means that the kernel or file system has no id-mapped mounts.
var errNoIDMap = errors.New("no id-mapped mounts")

// errNoMounts means that this process may not mount at all.
var errNoMounts = errors.New("may not mount")

// stager makes mounts below the session's directory.
type stager struct {
	cleanup *cleanup
	userns  *os.File // nil if nothing is mapped
	scratch *os.File // the id map of scratch directories, nil if they need none
	next    int      // index of the next of cleanup.mounts
	// attachLayers mounts overlays as kernels before 6.15 require.
	attachLayers bool
}

// cloneMount returns an unattached mount of the directory or file fd: no
// submounts, private, nosuid, nodev, and id-mapped by userns unless that is
// nil.
func cloneMount(fd int, readOnly bool, userns *os.File) (*os.File, error) {
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS):
		return nil, fmt.Errorf("clone mount: %w: %w", errNoMounts, err)
	case err != nil:
		return nil, fmt.Errorf("clone mount: %w", err)
	}
	mount := os.NewFile(uintptr(tree), "mount")
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = mount.Close()
		if errors.Is(err, unix.ENOSYS) { // before Linux 5.12
			return nil, fmt.Errorf("set mount flags: %w: %w", errNoMounts, err)
		}
		return nil, fmt.Errorf("set mount flags: %w", err)
	}
	if userns == nil {
		return mount, nil
	}
	attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = mount.Close()
		// EINVAL: the file system can't; EPERM: it, or this process's user
		// namespace, may not (mount_setattr(2)).
		return nil, fmt.Errorf("map ids of mount: %w: %w", errNoIDMap, err)
	}
	return mount, nil
}

// attachMount attaches mount to the next mount point and returns its path.
func (s *stager) attachMount(mount *os.File, isDir bool) (string, error) {
	name := s.cleanup.mounts[s.next].name
	s.next++
	if err := s.makeMountPoint(name, isDir); err != nil {
		return "", fmt.Errorf("make mount point: %w", err)
	}
	return filepath.Join(s.cleanup.base, name), overlayfs.Attach(mount, int(s.cleanup.dir.Fd()), name)
}

// makeMountPoint makes a mount point without permissions, useless until
// something is mounted on it.
func (s *stager) makeMountPoint(name string, isDir bool) error {
	if isDir {
		return unix.Mkdirat(int(s.cleanup.dir.Fd()), name, 0)
	}
	fd, err := unix.Openat(int(s.cleanup.dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// makeMountsDir makes the directory of the mount points, after adding it and
// count mounts to the cleanup list.
func (s *stager) makeMountsDir(dir string, count int) error {
	entries := []ownership.Entry{{Kind: ownership.KindDirectory, Path: dir}}
	for i := range count {
		entries = append(entries, ownership.Entry{Kind: ownership.KindMount, Path: fmt.Sprintf("%s/%d", dir, i+1)})
	}
	ids, err := s.cleanup.list.Add(entries...)
	if err != nil {
		return err
	}
	s.cleanup.mountsDir = &listedDir{id: ids[0], name: dir}
	for i, e := range entries[1:] {
		s.cleanup.mounts = append(s.cleanup.mounts, listedDir{id: ids[i+1], name: e.Path})
	}
	if err := unix.Mkdirat(int(s.cleanup.dir.Fd()), dir, 0o700); err != nil {
		return fmt.Errorf("make directory of mount points: %w", err)
	}
	return nil
}
