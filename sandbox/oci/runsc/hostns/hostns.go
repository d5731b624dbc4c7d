// Package hostns confines the processes of runsc --host-namespaces, which stay
// in the caller's namespaces: by Landlock instead of a root directory of their
// own, and by an ID map instead of a user namespace.
//
// The build copies this package into its copy of gVisor, whose patched files
// import it.
package hostns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Range maps Size IDs inside the sandbox, from Inside on, to those on the disk
// from Host on.
type Range struct{ Inside, Host, Size uint32 }

// IDMap maps user or group IDs as an ID-mapped mount does. The zero value maps
// every ID to itself.
type IDMap []Range

// overflowID is what the kernel shows of an owner that is not mapped
// (/proc/sys/kernel/overflowuid).
const overflowID = 65534

// ToInside returns what the sandbox sees of an owner on the disk.
func (m IDMap) ToInside(id uint32) uint32 {
	for _, r := range m {
		if id-r.Host < r.Size {
			return r.Inside + id - r.Host
		}
	}
	if m == nil {
		return id
	}
	return overflowID
}

// Maps reports whether the sandbox sees an owner on the disk as its own ID.
func (m IDMap) Maps(id uint32) bool {
	return m == nil || slices.ContainsFunc(m, func(r Range) bool { return id-r.Host < r.Size })
}

// ToHost returns the owner on the disk, or EINVAL, as chown(2) does, if the ID
// is not mapped.
func (m IDMap) ToHost(id uint32) (uint32, error) {
	for _, r := range m {
		if id-r.Inside < r.Size {
			return r.Host + id - r.Inside, nil
		}
	}
	if m == nil {
		return id, nil
	}
	return 0, unix.EINVAL
}

// FileID identifies a file on this machine.
type FileID struct {
	DevMajor, DevMinor uint32
	Ino                uint64
}

// FileIDOf returns the identity of the file that was examined.
func FileIDOf(stat *unix.Statx_t) FileID {
	return FileID{stat.Dev_major, stat.Dev_minor, stat.Ino}
}

// Examine returns the identity of the file at path, which has no symlinks.
func Examine(path string) (FileID, error) {
	var stat unix.Statx_t
	fd, err := openPath(path)
	if err != nil {
		return FileID{}, err
	}
	defer unix.Close(fd)
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &stat)
	return FileIDOf(&stat), err
}

func openPath(path string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
}

// SandboxID returns the user and group for a sandbox that root starts: one that
// no other sandbox has, because sandboxes of one user could trace each other. It
// returns overflowID if the user namespace lacks it. No system hands out this
// range; see workmount.FirstID.
func SandboxID() int {
	const first = 0x7900_0000
	id := first + os.Getpid()
	for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		data, err := os.ReadFile(file)
		var inside, outside, size int
		// The whole range, or what a container's user namespace has of it.
		if _, scanErr := fmt.Sscan(string(data), &inside, &outside, &size); err != nil || scanErr != nil || id < inside || id-inside >= size {
			return overflowID
		}
	}
	return id
}

// Tree is a file, or a directory with all below it, that a confined process may
// still open. Paths that don't exist are skipped.
type Tree struct {
	Path     string
	Writable bool
	// Executable lets it be executed.
	Executable bool
}

const (
	readRights  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	writeRights = readRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM |
		unix.LANDLOCK_ACCESS_FS_REFER | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	allRights = writeRights | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// renameABI is the first Landlock ABI that can allow renaming from one directory
// to another (landlock(7), LANDLOCK_ACCESS_FS_REFER).
const renameABI = 2

// ABI returns the kernel's Landlock ABI, or 0 if it has none.
func ABI() int {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// handled returns what a ruleset of this ABI forbids unless a rule allows it.
// Before ABI 4 it is the files alone.
func handled(abi int) (attr unix.LandlockRulesetAttr, size uintptr) {
	attr.Access_fs = allRights
	if abi < renameABI {
		attr.Access_fs &^= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi < 3 {
		attr.Access_fs &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi < 5 {
		attr.Access_fs &^= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	size = unsafe.Sizeof(attr.Access_fs)
	if abi >= 4 {
		attr.Access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		size += unsafe.Sizeof(attr.Access_net)
	}
	if abi >= 6 {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		size += unsafe.Sizeof(attr.Scoped)
	}
	return attr, size
}

// newRuleset returns a ruleset that allows these trees, or nil if the kernel's
// Landlock is older than minABI. Without scoped, it leaves signals and abstract
// sockets alone.
func newRuleset(trees []Tree, minABI int, scoped bool) (*os.File, error) {
	abi := ABI()
	if abi < minABI {
		return nil, nil
	}
	attr, size := handled(abi)
	if !scoped {
		attr.Scoped = 0
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return nil, fmt.Errorf("make Landlock ruleset: %w", errno)
	}
	rules := os.NewFile(fd, "landlock")
	for _, t := range trees {
		if err := allow(rules, t, attr.Access_fs); err != nil {
			return nil, errors.Join(fmt.Errorf("allow %s by Landlock: %w", t.Path, err), rules.Close())
		}
	}
	return rules, nil
}

func allow(rules *os.File, t Tree, known uint64) error {
	open := openPath
	if t.Executable { // /proc/self/exe
		open = func(path string) (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) }
	}
	fd, err := open(t.Path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	rights := uint64(readRights)
	if t.Writable {
		rights = writeRights
	}
	if t.Executable {
		rights |= unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= fileRights
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights & known, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// restrict applies a ruleset by call, which makes a system call in one thread or
// in all of them.
func restrict(rules *os.File, call func(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno)) error {
	if _, _, errno := call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	if rules == nil {
		return nil
	}
	if _, _, errno := call(unix.SYS_LANDLOCK_RESTRICT_SELF, rules.Fd(), 0, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("restrict by Landlock: %w", errno)
	}
	return nil
}

// Confine leaves all threads of this process the files in trees only, from Linux
// 6.7 on no TCP, and no privileges by exec. Signals are for its seccomp filter: where Landlock
// scopes them, Linux 6.12 to 6.14 also forbids those between the threads, which
// this call needs. Processes that it started earlier are not confined.
func Confine(trees ...Tree) error {
	rules, err := newRuleset(trees, renameABI, false)
	if err != nil {
		return err
	}
	err = restrict(rules, syscall.AllThreadsSyscall6)
	if rules != nil {
		err = errors.Join(err, rules.Close())
	}
	return err
}

// Hide makes this process undumpable: others of the same user can't trace it,
// nor read its memory, environment or files. Nor can it open its own below
// /proc.
func Hide() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make process undumpable: %w", err)
	}
	return nil
}

// startConfined confines this thread, on which nothing else may run, and starts
// cmd. The thread stays, because its end would be the parent's death for a child
// with Pdeathsig.
func startConfined(rules *os.File, cmd *exec.Cmd, started chan<- error) {
	err := restrict(rules, syscall.Syscall6)
	if err == nil {
		err = cmd.Start()
	}
	started <- err
	select {}
}

// Start starts cmd confined to trees and its own executable. Unlike Confine, it
// needs only the first Landlock, because the sandbox renames nothing, and forbids
// signals to other processes than cmd's children, which are confined with it.
func Start(cmd *exec.Cmd, trees ...Tree) error {
	rules, err := newRuleset(slices.Concat(trees, []Tree{{Path: cmd.Path, Executable: true}}), 1, true)
	if err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // The main thread stays free: take another.
			other := make(chan struct{})
			go func() {
				runtime.LockOSThread()
				close(other)
				startConfined(rules, cmd, started)
			}()
			<-other
			runtime.UnlockOSThread()
			return
		}
		startConfined(rules, cmd, started)
	}()
	err = <-started
	if rules != nil {
		err = errors.Join(err, rules.Close())
	}
	return err
}
