package workspace

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const pathSeparator = '/'

// How openat2(2) resolves a path: below the folder, through no magic link of
// /proc, onto no other mount. Linux follows at most 40 links in one path.
const (
	resolve  = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	maxLinks = 40
)

// maxRetries bounds how often a resolution is tried again that the kernel
// gave up because something was renamed or mounted meanwhile (EAGAIN); after
// that the walk takes over, which needs no such luck.
const maxRetries = 64

// tree resolves paths below one folder. It owns nothing: the folder stays
// its opener's.
type tree struct {
	dir *os.File
	// walking says that openat2 is missing (before Linux 5.6, or refused by a
	// seccomp profile), so that paths are walked name by name.
	walking atomic.Bool
	mount   mountID
	local   bool
	// layers are set where the folder is the root of an overlay that they make.
	layers *layers
}

// newTree verifies that dir is a folder and that openat2 really confines.
func newTree(dir *os.File) (*tree, error) {
	t := &tree{dir: dir}
	err := t.with(func(fd int) error {
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
		return nil, fmt.Errorf("hold folder: %w", err)
	}
	return t, nil
}

// newTreeOf is newTree of a folder that may be the root of an overlay.
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

// with lends the folder's descriptor. It keeps the file alive meanwhile, and
// does not use File.Fd, which would change the descriptor's mode.
func (t *tree) with(f func(fd int) error) error {
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

// open opens rel below the folder. The caller closes the descriptor.
func (t *tree) open(rel string, flags int) (int, error) {
	got := -1
	err := t.with(func(fd int) (err error) {
		got, err = t.openAt(fd, rel, flags)
		return err
	})
	return got, err
}

// openAt opens rel below the folder at, which is one of this tree.
func (t *tree) openAt(at int, rel string, flags int) (int, error) {
	if !t.walking.Load() {
		fd, err := openat2(at, rel, flags, resolve)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOSYS) {
			return fd, t.explain(at, rel, flags, err)
		}
	}
	w := walk{mount: t.mount}
	return w.open(at, rel, flags)
}

// openDir opens the folder rel for reading; it must not be a link unless follow
// says so.
func (t *tree) openDir(rel string, follow bool) (int, error) {
	flags := unix.O_PATH | unix.O_DIRECTORY
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := t.open(rel, flags)
	if err != nil {
		return -1, err
	}
	return readable(fd)
}

// openDirAt opens the folder name in at for reading, if it is no link.
func openDirAt(at int, name string) (int, error) {
	fd, err := openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	return readable(fd)
}

// readable opens for reading a folder that was opened by O_PATH, and closes
// that. Folders are opened in these two steps because gVisor follows a link
// for O_DIRECTORY|O_NOFOLLOW unless O_PATH is set (probed with the runsc that
// Caisson builds); Linux does not.
func readable(dir int) (int, error) {
	defer func() { _ = unix.Close(dir) }()
	return openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
}

// explain tells the two causes of EXDEV apart. The second look walks, since it
// stops at a mount without asking what is mounted there anything; it opens
// nothing, and what it finds is only told.
func (t *tree) explain(at int, rel string, flags int, err error) error {
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	w := walk{mount: t.mount}
	fd, again := w.open(at, rel, unix.O_PATH|flags&unix.O_NOFOLLOW)
	if again == nil {
		_ = unix.Close(fd)
	}
	if errors.Is(again, ErrMount) {
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

// isEscape knows the ways in which the resolvers say that a path leads outside.
func isEscape(err error) bool { return errors.Is(err, errEscape) }

// mountID tells mounts apart: by the kernel's id where there is one (Linux
// 5.8), else by device, which does not see a bind mount of the same device.
type mountID struct {
	id  uint64
	dev uint64
}

func mountOf(fd int) (mountID, error) {
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	return f.mount, err
}

// facts are what statx tells of a name or a descriptor.
type facts struct {
	unix.Stat_t
	mount mountID
	links uint64 // Nlink's width is the architecture's
}

// statx looks at name in the folder at, never through a link and never
// triggering an automount. It asks no server (AT_STATX_DONT_SYNC): the root of a
// stuck file system that is mounted there would not answer, and what a lookup
// has just brought is fresh enough to tell mounts and types apart.
func statx(at int, name string, flags int) (facts, error) {
	var x unix.Statx_t
	flags |= unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	err := retry(func() error {
		return unix.Statx(at, name, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &x)
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return fstatat(at, name, flags)
	}
	if err != nil {
		return facts{}, err
	}
	f := facts{mount: mountID{dev: unix.Mkdev(x.Dev_major, x.Dev_minor)}}
	if x.Mask&unix.STATX_MNT_ID != 0 {
		f.mount = mountID{id: x.Mnt_id}
	}
	f.Mode, f.Size, f.Ino, f.Dev = uint32(x.Mode), int64(x.Size), x.Ino, unix.Mkdev(x.Dev_major, x.Dev_minor)
	f.Uid, f.Gid, f.links = x.Uid, x.Gid, uint64(x.Nlink)
	f.Mtim = unix.NsecToTimespec(x.Mtime.Sec*1e9 + int64(x.Mtime.Nsec))
	f.Ctim = unix.NsecToTimespec(x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec))
	return f, nil
}

func fstatat(at int, name string, flags int) (facts, error) {
	var f facts
	err := retry(func() error { return unix.Fstatat(at, name, &f.Stat_t, flags) })
	f.mount = mountID{dev: f.Dev}
	f.links = uint64(f.Nlink) //nolint:unconvert // see links
	return f, err
}

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readLink gives what the link name in the folder at says.
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
