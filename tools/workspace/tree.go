package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// resolve makes openat2(2) stay below the directory and on its mount, without magic
// links of /proc. Linux follows at most maxLinks symlinks in one path.
const (
	resolve  = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	maxLinks = 40
)

// maxRetries bounds the retries of a resolution that the kernel gives up because
// something was renamed or mounted meanwhile (EAGAIN). After that a walk takes
// over.
const maxRetries = 64

// tree resolves paths below dir, which the opener closes.
type tree struct {
	dir *os.File
	// walking is set if openat2 is missing (before Linux 5.6, or refused by a
	// seccomp profile), so that paths are walked name by name.
	walking atomic.Bool
	mount   mountID
	local   bool
	// layers are set if the directory is the root of their overlay.
	layers *layers
}

// newTree checks that dir is a directory and that openat2 really confines.
func newTree(dir *os.File) (*tree, error) {
	t := &tree{dir: dir}
	err := t.withDescriptor(func(fd int) error {
		f, err := statx(fd, "", unix.AT_EMPTY_PATH)
		if err != nil {
			return err
		}
		if typeOf(f.Mode) != TypeDir {
			return unix.ENOTDIR
		}
		t.mount, t.local = f.mount, isLocal(fd)
		out, err := openat2(fd, "..", unix.O_PATH, resolve)
		if err == nil {
			_ = unix.Close(out)
		}
		t.walking.Store(!errors.Is(err, unix.EXDEV))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("hold directory: %w", err)
	}
	return t, nil
}

func newTreeOf(dir *os.File, o Layers) (*tree, error) {
	t, err := newTree(dir)
	if err != nil || o.Upper == nil || o.Lower == nil {
		return t, err
	}
	upper, err := newTree(o.Upper)
	if err != nil {
		return nil, fmt.Errorf("upper layer: %w", err)
	}
	lower, err := newTree(o.Lower)
	if err != nil {
		return nil, fmt.Errorf("lower layer: %w", err)
	}
	t.local = upper.local && lower.local
	if !upper.walking.Load() && !lower.walking.Load() {
		t.layers = &layers{upper, lower}
	}
	return t, nil
}

// withDescriptor calls f with the directory's descriptor and keeps the file alive
// meanwhile. File.Fd would change the descriptor's mode.
func (t *tree) withDescriptor(f func(fd int) error) error {
	raw, err := t.dir.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// openPath opens rel below the directory. The caller closes the descriptor.
func (t *tree) openPath(rel string, flags int) (int, error) {
	got := -1
	err := t.withDescriptor(func(fd int) (err error) {
		got, err = t.openAt(fd, rel, flags)
		return err
	})
	return got, err
}

// openAt opens rel below at, a directory of this tree.
func (t *tree) openAt(at int, rel string, flags int) (int, error) {
	if !t.walking.Load() {
		fd, err := openat2(at, rel, flags, resolve)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOSYS) {
			return fd, t.explainCrossing(at, rel, flags, err)
		}
	}
	w := walk{mount: t.mount}
	return w.openPath(at, rel, flags)
}

// openDir opens the directory rel for reading. Without follow, it may not be a
// symlink.
func (t *tree) openDir(rel string, follow bool) (int, error) {
	flags := unix.O_PATH | unix.O_DIRECTORY
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := t.openPath(rel, flags)
	if err != nil {
		return -1, err
	}
	return openForReading(fd)
}

func openDirAt(at int, name string) (int, error) {
	fd, err := openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	return openForReading(fd)
}

// openForReading reopens a directory for reading and closes dir, which was opened
// with O_PATH. Two steps are needed because gVisor follows a symlink for
// O_DIRECTORY|O_NOFOLLOW unless O_PATH is set (probed with the runsc that Caisson
// builds); Linux does not.
func openForReading(dir int) (int, error) {
	defer func() { _ = unix.Close(dir) }()
	return openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
}

// explainCrossing tells the causes of EXDEV apart, and in gVisor of EPERM: it
// gives pipes, sockets and devices either. It resolves the path again by walking,
// which stops at a mount without touching its file system. The result serves only
// the error.
func (t *tree) explainCrossing(at int, rel string, flags int, err error) error {
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EPERM) {
		return err
	}
	w := walk{mount: t.mount}
	fd, again := w.openPath(at, rel, unix.O_PATH|flags&unix.O_NOFOLLOW)
	if again == nil {
		f, statErr := statx(fd, "", unix.AT_EMPTY_PATH)
		_ = unix.Close(fd)
		if typ := typeOf(f.Mode); statErr == nil && (typ == TypeFIFO || typ == TypeSocket || typ == TypeDevice) {
			return fmt.Errorf("%w: %w", errNotRegular, err)
		}
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return err
	case errors.Is(again, ErrMount):
		return fmt.Errorf("%w: %w", ErrMount, err)
	}
	return fmt.Errorf("%w: %w", errEscape, err)
}

func openat2(at int, rel string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	for range maxRetries {
		fd, err := unix.Openat2(at, rel, &how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			runtime.Gosched()
		default:
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// mountID identifies a mount: by the kernel's id (Linux 5.8), or else by device,
// which can't distinguish bind mounts of one device.
type mountID struct {
	id  uint64
	dev uint64
}

type statResult struct {
	unix.Stat_t
	mount mountID
	links uint64 // Nlink's width depends on the architecture
}

// statx describes name in the directory at. It never follows a symlink or triggers
// an automount, and it asks no server (AT_STATX_DONT_SYNC): the root of a stuck
// file system would not answer, and the last lookup is fresh enough to tell mounts
// and types apart.
func statx(at int, name string, flags int) (statResult, error) {
	var x unix.Statx_t
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err := retry(func() error { return unix.Statx(at, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &x) })
	if err != nil {
		return statResult{}, err
	}
	f := statResult{mount: mountID{dev: unix.Mkdev(x.Dev_major, x.Dev_minor)}}
	if x.Mask&unix.STATX_MNT_ID != 0 {
		f.mount = mountID{id: x.Mnt_id}
	}
	f.Mode, f.Size, f.Ino, f.Dev = uint32(x.Mode), int64(x.Size), x.Ino, unix.Mkdev(x.Dev_major, x.Dev_minor)
	f.Blocks = int64(x.Blocks)
	f.Uid, f.Gid, f.links = x.Uid, x.Gid, uint64(x.Nlink)
	f.Mtim = unix.NsecToTimespec(x.Mtime.Sec*1e9 + int64(x.Mtime.Nsec))
	f.Ctim = unix.NsecToTimespec(x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec))
	return f, nil
}

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func readLink(at int, name string) (string, error) {
	buf := make([]byte, MaxPathBytes+1)
	n := 0
	err := retry(func() (err error) {
		n, err = unix.Readlinkat(at, name, buf)
		return err
	})
	if err != nil {
		return "", err
	}
	return strings.Clone(string(buf[:n])), nil
}

// isLocal reports whether a directory is certainly on a file system of this
// machine's kernel and disks. Network and FUSE file systems are not, nor is
// overlayfs, whose layers may be on one of them.
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

// Magic numbers that x/sys lacks: ZFS (include/os/linux/zfs/sys in openzfs/zfs) and
// bcachefs (BCACHEFS_STATFS_MAGIC).
const (
	zfsMagic      = 0x2fc12fc1
	bcachefsMagic = 0xca451a4e
)

// stat describes the file that rel leads to or, without follow, what rel names. It
// doesn't open the file for reading.
func (t *tree) stat(rel string, follow bool) (Info, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := t.openPath(rel, flags)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Info{}, err
	}
	info := infoOf(&st)
	if info.Type == TypeSymlink {
		info.Target, err = readLink(fd, "")
	}
	return info, err
}

// openFile opens a regular file for reading. O_NONBLOCK makes a FIFO open at once,
// and the type is then checked.
func (t *tree) openFile(rel string) (node, Info, error) {
	return asRegular(t.openPath(rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY))
}

func asRegular(fd int, err error) (node, Info, error) {
	if err != nil {
		return node{}, Info{}, err
	}
	n := node{fd: fd}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		n.close()
		return node{}, Info{}, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return n, infoOf(&st), nil
	case unix.S_IFDIR:
		err = unix.EISDIR
	default:
		err = errNotRegular
	}
	n.close()
	return node{}, Info{}, err
}

type node struct{ fd int }

func (n node) close() { _ = unix.Close(n.fd) }

// readAt reads once; 0 and nil mean the end.
func (n node) readAt(p []byte, off int64) (got int, err error) {
	err = retry(func() error {
		got, err = unix.Pread(n.fd, p, off)
		return err
	})
	return max(got, 0), err
}

func infoOf(st *unix.Stat_t) Info {
	return Info{
		Type:    typeOf(st.Mode),
		Size:    st.Size,
		Mode:    modeOf(st.Mode),
		ModTime: time.Unix(st.Mtim.Unix()),
		Inode:   st.Ino,
	}
}

func typeOf(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDir
	case unix.S_IFLNK:
		return TypeSymlink
	case unix.S_IFIFO:
		return TypeFIFO
	case unix.S_IFSOCK:
		return TypeSocket
	case unix.S_IFCHR, unix.S_IFBLK:
		return TypeDevice
	}
	return TypeOther
}

func modeOf(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for _, b := range []struct {
		bits uint32
		mode fs.FileMode
	}{
		{unix.S_ISUID, fs.ModeSetuid}, {unix.S_ISGID, fs.ModeSetgid}, {unix.S_ISVTX, fs.ModeSticky},
	} {
		if mode&b.bits != 0 {
			m |= b.mode
		}
	}
	switch typeOf(mode) {
	case TypeDir:
		m |= fs.ModeDir
	case TypeSymlink:
		m |= fs.ModeSymlink
	case TypeFIFO:
		m |= fs.ModeNamedPipe
	case TypeSocket:
		m |= fs.ModeSocket
	case TypeDevice:
		m |= fs.ModeDevice
		if mode&unix.S_IFMT == unix.S_IFCHR {
			m |= fs.ModeCharDevice
		}
	}
	return m
}
