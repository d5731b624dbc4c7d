package setid

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const setIDBits = unix.S_ISUID | unix.S_ISGID

// caller is a thread of a command that waits for the answer to a call.
//
// What it names is resolved once, to a descriptor, without the magic symlinks
// of /proc, which would lead to the guest's own files. The descriptor is then
// used. All of it is done with the commands' identity, so the caller gains
// nothing by swapping files meanwhile.
type caller struct {
	thread int
	root   int // O_PATH
	// waits reports whether the thread still waits, and so whether what was
	// read below its /proc is its own.
	waits func() bool
}

// result is a call's return value: 0, or a descriptor for the caller.
type result struct {
	fd          int // -1 for none
	closeOnExec uint32
}

var nothing = result{fd: -1}

// performCall makes the call without the bits, or with the set-group-ID bit for
// a directory.
func (c *caller) performCall(call int, args [6]uint64) (result, error) {
	switch call {
	case unix.SYS_FCHMOD:
		return nothing, c.fchmod(int32(args[0]), args[1])
	case unix.SYS_FCHMODAT:
		return nothing, c.changeMode(int32(args[0]), args[1], args[2], 0)
	case unix.SYS_FCHMODAT2:
		return nothing, c.changeMode(int32(args[0]), args[1], args[2], uint32(args[3]))
	case unix.SYS_OPENAT:
		return c.openFile(int32(args[0]), args[1], args[2], args[3])
	case unix.SYS_MKNODAT:
		return nothing, c.makeNode(int32(args[0]), args[1], args[2])
	}
	return c.performHere(call, args)
}

func (c *caller) fchmod(fd int32, mode uint64) error {
	dir, err := c.openDescriptor(fd)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return c.chmodDir(dir, mode)
}

func (c *caller) changeMode(at int32, addr, mode uint64, flags uint32) error {
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return unix.EINVAL
	}
	base, name, err := c.resolvePath(at, addr)
	if err != nil {
		return err
	}
	defer c.closeBase(base)
	if fd, ok := ownDescriptor(name); ok && flags&unix.AT_SYMLINK_NOFOLLOW == 0 {
		return c.fchmod(fd, mode)
	}
	if name == "" && flags&unix.AT_EMPTY_PATH != 0 {
		return c.chmodDir(base, mode)
	}
	open := uint64(unix.O_PATH | unix.O_CLOEXEC)
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		open |= unix.O_NOFOLLOW
	}
	dir, err := openat(base, name, open, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return c.chmodDir(dir, mode)
}

// ownDescriptor returns the caller's descriptor that a path names. C libraries
// change a mode by such a path if they must not follow a symlink.
func ownDescriptor(name string) (int32, bool) {
	for _, dir := range []string{"/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"} {
		if text, ok := strings.CutPrefix(name, dir); ok {
			fd, err := strconv.ParseUint(text, 10, 31)
			return int32(fd), err == nil
		}
	}
	return 0, false
}

// chmodDir sets the mode of an open directory.
func (c *caller) chmodDir(fd int, mode uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || mode&unix.S_ISUID != 0 || !c.waits() {
		return unix.EPERM
	}
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), uint32(mode&0o7777), 0)
}

// tries bounds how often a file that comes and goes is opened and created.
const tries = 10

// known are the flags that openat2 accepts; open ignores others.
const known = unix.O_ACCMODE | unix.O_CREAT | unix.O_EXCL | unix.O_NOCTTY | unix.O_TRUNC | unix.O_APPEND |
	unix.O_NONBLOCK | unix.O_DSYNC | unix.O_DIRECT | unix.O_LARGEFILE | unix.O_DIRECTORY | unix.O_NOFOLLOW |
	unix.O_NOATIME | unix.O_CLOEXEC | unix.O_SYNC | unix.O_TMPFILE

// openFile creates a regular file without the bits, or opens an existing one.
func (c *caller) openFile(at int32, addr, flags, mode uint64) (result, error) {
	if flags&unix.O_PATH != 0 {
		return nothing, unix.EINVAL
	}
	flags &= known
	base, name, err := c.resolvePath(at, addr)
	if err != nil {
		return nothing, err
	}
	defer c.closeBase(base)
	mask, err := c.readUmask()
	if err != nil || !c.waits() {
		return nothing, unix.EPERM
	}
	mode = mode & 0o7777 &^ setIDBits &^ mask
	// A FIFO or a lease must not block the supervisor.
	fd, created, err := createFile(base, name, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
	if err != nil {
		return nothing, err
	}
	if err := finishFile(fd, created, flags, mode); err != nil {
		_ = unix.Close(fd)
		return nothing, err
	}
	return result{fd: fd, closeOnExec: uint32(flags & unix.O_CLOEXEC)}, nil
}

// createFile opens a file and reports whether it created it.
func createFile(base int, name string, flags, mode uint64) (fd int, created bool, err error) {
	if flags&unix.O_TMPFILE == unix.O_TMPFILE {
		fd, err = openat(base, name, flags, mode)
		return fd, true, err
	}
	for range tries {
		if flags&unix.O_EXCL == 0 {
			fd, err = openat(base, name, flags&^unix.O_CREAT, 0)
			if !errors.Is(err, unix.ENOENT) {
				return fd, false, err
			}
		}
		fd, err = openat(base, name, flags|unix.O_EXCL, mode)
		if !errors.Is(err, unix.EEXIST) || flags&unix.O_EXCL != 0 {
			return fd, true, err
		}
	}
	return -1, false, unix.EPERM // a symlink that leads nowhere
}

// finishFile makes an open file what the caller asked for.
func finishFile(fd int, created bool, flags, mode uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	// Files below /proc/self are the guest's own.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type == unix.PROC_SUPER_MAGIC {
		return unix.EPERM
	}
	if created && mode&guestMask != 0 {
		if err := unix.Fchmod(fd, uint32(mode)); err != nil {
			return err
		}
	}
	if flags&unix.O_NONBLOCK != 0 {
		return nil
	}
	now, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, now&^unix.O_NONBLOCK)
	return err
}

// guestMask is the guest's own umask, which the kernel applies to files that
// the supervisor creates.
const guestMask = 0o022

// makeNode creates a regular file, a FIFO or a socket without the bits. Both
// the guest's and the caller's umask apply.
func (c *caller) makeNode(at int32, addr, mode uint64) error {
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
	default:
		return unix.EPERM
	}
	base, name, err := c.resolvePath(at, addr)
	if err != nil {
		return err
	}
	defer c.closeBase(base)
	dir, file := path.Split(name)
	if file == "" {
		return unix.ENOENT
	}
	if dir != "" {
		parent, err := openat(base, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(parent)
		base = parent
	}
	mask, err := c.readUmask()
	if err != nil || !c.waits() {
		return unix.EPERM
	}
	return unix.Mknodat(base, file, uint32(mode&(unix.S_IFMT|0o7777)&^setIDBits&^mask), 0)
}

// openat opens a name below base, or anywhere if it begins at the root.
func openat(base int, name string, flags, mode uint64) (int, error) {
	return unix.Openat2(base, name, &unix.OpenHow{Flags: flags, Mode: mode, Resolve: unix.RESOLVE_NO_MAGICLINKS})
}

// resolvePath returns the directory that a path begins at, O_PATH, and the
// path. The caller must call closeBase.
func (c *caller) resolvePath(at int32, addr uint64) (base int, name string, err error) {
	if name, err = c.readPath(addr); err != nil {
		return -1, "", err
	}
	switch {
	case strings.HasPrefix(name, "/"):
		return c.root, name, nil
	case at == unix.AT_FDCWD:
		base, err = c.openProc("cwd")
	default:
		base, err = c.openDescriptor(at)
	}
	return base, name, err
}

// closeBase closes the result of resolvePath.
func (c *caller) closeBase(base int) {
	if base != c.root {
		_ = unix.Close(base)
	}
}

// openDescriptor returns the caller's descriptor fd, O_PATH.
func (c *caller) openDescriptor(fd int32) (int, error) {
	held, err := c.openProc("fd/" + strconv.Itoa(int(fd)))
	if errors.Is(err, unix.ENOENT) {
		err = unix.EBADF
	}
	return held, err
}

// openProc opens a magic symlink of the caller.
func (c *caller) openProc(name string) (int, error) {
	return unix.Open(c.procPath(name), unix.O_PATH|unix.O_CLOEXEC, 0)
}

func (c *caller) procPath(name string) string { return fmt.Sprintf("/proc/%d/%s", c.thread, name) }

// readPath reads a path from the caller's memory.
func (c *caller) readPath(addr uint64) (string, error) {
	mem, err := os.Open(c.procPath("mem"))
	if err != nil {
		return "", unix.EPERM
	}
	defer func() { _ = mem.Close() }()
	const page = 4096 // memory after the path's end may not be readable
	var text []byte
	for len(text) < unix.PathMax {
		piece := make([]byte, page-addr%page)
		n, err := mem.ReadAt(piece, int64(addr))
		if n == 0 && err != nil {
			return "", unix.EFAULT
		}
		if end := bytes.IndexByte(piece[:n], 0); end >= 0 {
			text = append(text, piece[:end]...)
			break
		}
		text, addr = append(text, piece[:n]...), addr+uint64(n)
	}
	if len(text) >= unix.PathMax {
		return "", unix.ENAMETOOLONG
	}
	return string(text), nil
}

func (c *caller) readUmask() (uint64, error) {
	text, err := c.readStatus("Umask")
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 8, 32)
}

// isUser reports whether all four user ids of the caller are uid. They can't
// change: commands have no capabilities.
func (c *caller) isUser(uid int64) bool {
	text, err := c.readStatus("Uid")
	id := strconv.FormatInt(uid, 10)
	return err == nil && slices.Equal(strings.Fields(text), []string{id, id, id, id}) && c.waits()
}

// readStatus reads a field of the caller's status.
func (c *caller) readStatus(name string) (string, error) {
	status, err := os.ReadFile(c.procPath("status"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(text), nil
		}
	}
	return "", unix.ENOTSUP
}
