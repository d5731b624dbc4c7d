package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// resolve makes every path resolve below the held directory, through no symlink,
// and onto no other mount. It needs Linux 5.6.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// tree is a directory that is held open by a descriptor. It does not own the
// descriptor.
type tree struct{ fd int }

// openAt opens rel with flags. The caller must close the descriptor.
func (t tree) openAt(rel string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: resolve}
	for range 64 { // EAGAIN: concurrent renames, see openat2(2)
		fd, err := unix.Openat2(t.fd, rel, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// openDir opens the directory rel for reading.
func (t tree) openDir(rel string) (int, error) { return t.openAt(rel, unix.O_RDONLY|unix.O_DIRECTORY) }

// lstat returns the node at rel. It returns nil if nothing exists there, or if
// a part of its path is missing or not a directory.
func (t tree) lstat(rel string) (*node, error) { return t.lstatWith(rel, statAt) }

// lstatWith is lstat with a function that returns a node in a directory.
func (t tree) lstatWith(rel string, stat func(dir int, name string) (*node, error)) (*node, error) {
	if rel == "." {
		return statAt(t.fd, "")
	}
	fd, err := t.openAt(parent(rel), unix.O_PATH|unix.O_DIRECTORY)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := stat(fd, base(rel))
	if isMissing(err) {
		return nil, nil
	}
	return n, err
}

// isMissing reports whether an error means that a path does not exist without
// following symlinks.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// statAt returns the node of name in the directory dir, or of dir itself if
// name is "".
func statAt(dir int, name string) (*node, error) {
	var st unix.Stat_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if err := ignoringEINTR(func() error { return unix.Fstatat(dir, name, &st, flags) }); err != nil {
		return nil, err
	}
	n := nodeOf(&st)
	if n.typ == workspace.TypeSymlink {
		buf := make([]byte, unix.PathMax)
		size, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return nil, err
		}
		n.target = string(buf[:size])
	}
	return n, nil
}

// nodeOf converts the result of stat(2).
func nodeOf(st *unix.Stat_t) *node {
	n := &node{
		mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid, ino: st.Ino, nlink: uint32(st.Nlink),
		mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.typ, n.size = workspace.TypeFile, st.Size
	case unix.S_IFDIR:
		n.typ = workspace.TypeDir
	case unix.S_IFLNK:
		n.typ = workspace.TypeSymlink
	case unix.S_IFIFO:
		n.typ = workspace.TypeFIFO
	case unix.S_IFSOCK:
		n.typ = workspace.TypeSocket
	case unix.S_IFCHR:
		n.typ, n.whiteout = workspace.TypeDevice, st.Rdev == 0
	case unix.S_IFBLK:
		n.typ = workspace.TypeDevice
	default:
		n.typ = workspace.TypeOther
	}
	return n
}

// statLayer is statAt in a directory of an upper layer, where empty files can be
// whiteouts.
func statLayer(dir int, name string) (*node, error) {
	n, err := statAt(dir, name)
	if err == nil && n.typ == workspace.TypeFile && n.size == 0 && overlayfs.IsWhiteout(dir, name) {
		n.typ, n.whiteout = workspace.TypeDevice, true
	}
	return n, err
}

// isOpaque reports whether the open directory hides the one below it.
func isOpaque(dir int) (bool, error) {
	buf := make([]byte, 16)
	n, err := unix.Fgetxattr(dir, overlayfs.OpaqueAttribute, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return false, nil
	case errors.Is(err, unix.ERANGE):
		return false, nil // longer than any value that the kernel sets
	case err != nil:
		return false, err
	}
	return n == 1 && buf[0] == 'y', nil
}

// maxPathBytes is the length of the longest path that the kernel accepts.
const maxPathBytes = unix.PathMax - 1

// errNames is wrapped by the error for a directory whose names can't be read.
var errNames = errors.New("can't be read")

// eachName calls visit for every name in the open directory, in no particular
// order, until visit returns an error. It does not hold the whole directory in
// memory.
func eachName(dir int, visit func(name string) error) error {
	buf := make([]byte, 8<<10)
	for {
		n := 0
		err := ignoringEINTR(func() (err error) {
			n, err = unix.Getdents(dir, buf)
			return err
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errNames, err)
		}
		if n <= 0 {
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			if name, rest = nextName(rest); name == "." || name == ".." {
				continue
			}
			if err := visit(name); err != nil {
				return err
			}
		}
	}
}

// nextName takes one record of getdents64(2) off buf: d_ino u64, d_off s64, d_reclen u16,
// d_type u8, d_name[]. Unlike [unix.ParseDirent], it keeps entries with the inode 0: some
// FUSE file systems report no inodes.
func nextName(buf []byte) (name string, rest []byte) {
	size := binary.NativeEndian.Uint16(buf[16:])
	return unix.ByteSliceToString(buf[19:size]), buf[size:]
}

// openFile opens the regular file rel for reading. It returns an error for any
// other type, and never blocks on a pipe.
func (t tree) openFile(rel string) (*os.File, *node, error) {
	fd, err := t.openAt(rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), rel)
	n, err := statAt(fd, "")
	if err == nil && n.typ != workspace.TypeFile {
		err = fmt.Errorf("%w: %s, not a file", errTypeChanged, n.typ)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, n, nil
}

// hashIndexAt returns the [hashIndex] of the git index at rel, or "" if it is
// unknown.
func (t tree) hashIndexAt(rel string) string {
	f, n, err := t.openFile(rel)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if n.size > maxIndexBytes {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(f, maxIndexBytes))
	if err != nil {
		return ""
	}
	return hashIndex(data)
}

// errTypeChanged is the error for an entry whose type has changed since it was
// examined.
var errTypeChanged = errors.New("has become something else")

// ignoringEINTR calls f until it is not interrupted.
func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readBirthTime returns the time when the open directory was created, in
// nanoseconds, or 0 if it is unknown.
func readBirthTime(fd int) int64 {
	var x unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &x)
	if err != nil || x.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return time.Unix(x.Btime.Sec, int64(x.Btime.Nsec)).UnixNano()
}
