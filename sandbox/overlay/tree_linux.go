package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// resolve is how every path is resolved: below the held folder, through no link
// at all, onto no other mount. An overlay needs a kernel that has it (userxattr
// came with Linux 5.11, openat2 with 5.6).
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// tree is a folder that is held open by its descriptor. It owns nothing.
type tree struct{ fd int }

// openAt opens rel with flags; the caller closes it.
func (t tree) openAt(rel string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: resolve}
	for range 64 { // EAGAIN: somebody renames meanwhile; openat2(2)
		fd, err := unix.Openat2(t.fd, rel, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// openDir opens the folder rel for reading.
func (t tree) openDir(rel string) (int, error) { return t.openAt(rel, unix.O_RDONLY|unix.O_DIRECTORY) }

// lstat looks at rel; nil where there is nothing, also where a part of its
// folder is missing or no folder.
func (t tree) lstat(rel string) (*node, error) {
	if rel == "." {
		n, err := statAt(t.fd, "")
		return n, err
	}
	fd, err := t.openAt(parent(rel), unix.O_PATH|unix.O_DIRECTORY)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := statAt(fd, base(rel))
	if isMissing(err) {
		return nil, nil
	}
	return n, err
}

// isMissing says that a path does not lead anywhere any more, without links.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// statAt looks at name in the folder dir, or at dir itself where name is "".
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
	if n.typ == workspace.TypeLink {
		buf := make([]byte, unix.PathMax)
		size, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return nil, err
		}
		n.target = string(buf[:size])
	}
	return n, nil
}

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
		n.typ = workspace.TypeLink
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

// opaqueXattr marks a folder of an upper layer that hides the one below it
// (Documentation/filesystems/overlayfs.rst, with userxattr).
const opaqueXattr = "user.overlay.opaque"

// isOpaque says whether the open folder hides what is below it.
func isOpaque(dir int) (bool, error) {
	buf := make([]byte, 16)
	n, err := unix.Fgetxattr(dir, opaqueXattr, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return false, nil
	case errors.Is(err, unix.ERANGE):
		return false, nil // longer than any value that the kernel knows
	case err != nil:
		return false, err
	}
	return n == 1 && buf[0] == 'y', nil
}

// maxPathBytes is the longest path that the kernel takes.
const maxPathBytes = unix.PathMax - 1

// errNames is wrapped by the error for a directory whose names can't be read.
var errNames = errors.New("can't be read")

// eachName calls visit for every name in the open folder, in no order, and ends
// with its error. It holds no more than one piece of the folder.
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
			if name, rest = nextName(rest); name == "" || name == "." || name == ".." {
				continue
			}
			if err := visit(name); err != nil {
				return err
			}
		}
	}
}

// nextName takes one record of getdents64(2) off buf; see linux_dirent64.
func nextName(buf []byte) (string, []byte) {
	const header = 19
	if len(buf) < header {
		return "", nil
	}
	size := int(binary.NativeEndian.Uint16(buf[16:18]))
	if size < header || size > len(buf) {
		return "", nil
	}
	name := buf[header:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return string(name), buf[size:]
}

// openFile opens the regular file rel for reading, never waiting for a pipe's other
// end. What it opened is a regular file, or an error.
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

// hashIndexAt gives what the git index at rel says, "" where that is not known.
func (t tree) hashIndexAt(rel string) string {
	f, n, err := t.openFile(rel)
	if err != nil {
		return ""
	}
	defer f.Close()
	if n.size > maxIndexBytes {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(f, maxIndexBytes))
	if err != nil {
		return ""
	}
	return hashIndex(data)
}

// errTypeChanged is what was looked at as one thing and is another now.
var errTypeChanged = errors.New("has become something else")

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func timespec(ns int64) unix.Timespec { return unix.NsecToTimespec(ns) }

// readBirthTime is when the open folder was made, in nanoseconds; 0 is unknown.
func readBirthTime(fd int) int64 {
	var x unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &x)
	if err != nil || x.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return time.Unix(x.Btime.Sec, int64(x.Btime.Nsec)).UnixNano()
}
