// Package identity reads and changes the credentials of threads.
//
// Linux keeps credentials per thread. Unlike the standard library, the
// functions here use raw system calls, which change only the calling thread.
// Callers must lock their goroutine to its thread.
package identity

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// keep as an id argument leaves the id as it is.
const keep = uintptr(math.MaxUint32)

// SetGroups sets the calling thread's supplementary groups.
func SetGroups(groups ...uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); errno != 0 {
		return fmt.Errorf("set groups: %w", errno)
	}
	return nil
}

// SetEffective switches the calling thread's effective user and group, and with
// them the ids for file access. Real and saved ids stay, so commands can
// neither signal nor trace the thread, and it can switch back. Leaving uid 0
// also empties the effective capabilities; returning restores them.
func SetEffective(uid, gid uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); errno != 0 {
		return fmt.Errorf("set effective gid %d: %w", gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("set effective uid %d: %w", uid, errno)
	}
	return nil
}

// Restore undoes SetEffective for a thread whose ids were all uid and gid.
func Restore(uid, gid uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("restore effective uid: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); errno != 0 {
		return fmt.Errorf("restore effective gid: %w", errno)
	}
	return nil
}

// LimitBounding reduces the calling thread's bounding set to wanted, a bit
// mask. Programs that it executes can then never gain another capability. It
// needs CAP_SETPCAP.
func LimitBounding(wanted uint64) error {
	for c := range uintptr(64) {
		if wanted&(1<<c) != 0 {
			continue
		}
		switch _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errno {
		case 0:
		case unix.EINVAL: // past the kernel's last capability
			return nil
		default:
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, errno)
		}
	}
	return nil
}

// ClearAmbient empties the calling thread's ambient set, if the kernel has
// them.
func ClearAmbient() {
	_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0)
}

// LimitCapabilities reduces the calling thread's permitted and effective sets
// to wanted, a bit mask, and empties its inheritable set.
func LimitCapabilities(wanted uint64) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("read capabilities: %w", errno)
	}
	for i := range data {
		mask := uint32(wanted >> (32 * i))
		data[i].Permitted &= mask
		data[i].Effective = data[i].Permitted
		data[i].Inheritable = 0
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("limit capabilities: %w", errno)
	}
	return nil
}

// DropCapability drops a capability from all sets of all threads, for good. It
// needs CAP_SETPCAP, and threads with the same capabilities.
func DropCapability(number uintptr) error {
	_, _, _ = syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_LOWER, number, 0, 0, 0) // not in it, or no such set
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, number, 0); errno != 0 {
		return fmt.Errorf("drop capability %d from the bounding set: %w", number, errno)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("read capabilities: %w", errno)
	}
	set, bit := &data[number/32], uint32(1)<<(number%32)
	set.Permitted &^= bit
	set.Effective &^= bit
	set.Inheritable &^= bit
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("drop capability %d: %w", number, errno)
	}
	return nil
}

// NoNewPrivileges sets no_new_privs on the calling thread, for good.
func NoNewPrivileges() error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	return nil
}

// SetFilter installs a seccomp filter on the calling thread only (no TSYNC).
// Its children inherit it; it can't be removed.
func SetFilter(program []unix.SockFilter) error {
	_, err := setFilter(program, 0)
	return err
}

// SetFilterWithListener is SetFilter, and returns the descriptor that receives
// the filter's notifications.
func SetFilterWithListener(program []unix.SockFilter) (listener int, err error) {
	// Then only fatal signals interrupt a call that the listener has received
	// (Linux 5.19).
	listener, err = setFilter(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if errors.Is(err, unix.EINVAL) {
		listener, err = setFilter(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	return listener, err
}

func setFilter(program []unix.SockFilter, flags uintptr) (int, error) {
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
	if errno != 0 {
		return -1, fmt.Errorf("install seccomp filter: %w", errno)
	}
	return int(fd), nil
}

// SetDumpable sets whether processes of the same user may trace this process
// and read its memory and descriptors.
func SetDumpable(on bool) error {
	var v uintptr
	if on {
		v = 1
	}
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, v, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set dumpable: %w", errno)
	}
	return nil
}

// Dumpable returns whether the process is dumpable, or true if the kernel can't
// tell.
func Dumpable() bool {
	v, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE, 0, 0, 0, 0, 0)
	return errno != 0 || v == 1
}

// Read reads a status file of /proc.
func Read(path string) (wire.Identity, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return wire.Identity{}, fmt.Errorf("read identity: %w", err)
	}
	return Parse(data), nil
}

// Parse parses the text of a status file. A missing or malformed line leaves
// its field zero. Seccomp and no_new_privs then count as absent, which the
// check of a container refuses.
func Parse(status []byte) wire.Identity {
	var id wire.Identity
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		setField(&id, key, strings.TrimSpace(value))
	}
	return id
}

func setField(id *wire.Identity, key, value string) {
	switch key {
	case "Uid":
		copy(id.UID[:], parseIDs(value))
	case "Gid":
		copy(id.GID[:], parseIDs(value))
	case "Groups":
		id.Groups = parseIDs(value)
	case "CapInh":
		id.Inheritable = parseMask(value)
	case "CapPrm":
		id.Permitted = parseMask(value)
	case "CapEff":
		id.Effective = parseMask(value)
	case "CapBnd":
		id.Bounding = parseMask(value)
	case "CapAmb":
		id.Ambient = parseMask(value)
	case "NoNewPrivs":
		id.NoNewPrivs = value == "1"
	case "Seccomp":
		id.Seccomp, _ = strconv.Atoi(value)
	case "Seccomp_filters":
		id.Filters, _ = strconv.Atoi(value)
	}
}

func parseIDs(text string) []uint32 {
	out := []uint32{}
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return out
		}
		out = append(out, uint32(n))
	}
	return out
}

func parseMask(text string) uint64 {
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return math.MaxUint64 // unlike none, full is refused
	}
	return n
}

// BecomeRoot makes the whole process uid and gid 0 of its user namespace, for a
// guest that a rootless runtime started as a user with ambient capabilities. It
// keeps the permitted capabilities.
func BecomeRoot() error {
	if os.Geteuid() == 0 && os.Getuid() == 0 {
		return nil
	}
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return fmt.Errorf("become gid 0: %w", err)
	}
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		return fmt.Errorf("become uid 0: %w", err)
	}
	return nil
}

// Dedicate runs f on its own thread. The thread ends when f returns, because f
// may have changed its state. It is never the main thread, whose credentials
// /proc/PID shows.
func Dedicate(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

// Pool has threads that were changed for good. They live as long as the process.
// A Pool is safe for concurrent use.
type Pool struct{ work chan func() }

// NewThreads starts n threads, each of which first calls prepare. It returns the
// first error of prepare; that thread has then ended.
func NewThreads(n int, prepare func() error) (*Pool, error) {
	p := &Pool{work: make(chan func())}
	ready := make(chan error)
	for range n {
		Dedicate(func() { p.runThread(prepare, ready) })
		if err := <-ready; err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Pool) runThread(prepare func() error, ready chan<- error) {
	err := prepare()
	ready <- err
	if err != nil {
		return
	}
	for f := range p.work {
		f()
	}
}

// Commands is the identity of commands.
type Commands struct {
	UID, GID uint32
	// Groups are the supplementary groups, if Separate is set.
	Groups []uint32
	// Separate reports that the guest is another user and may become this one.
	// Otherwise commands keep the guest's ids.
	Separate bool
	// Root reports that commands are root, with the guest's ids and
	// wire.RootCapabilities.
	Root bool
}

// NewPool starts threads with the commands' effective user and group, the given
// supplementary groups and no effective capabilities except root commands'.
// Their real and saved ids stay the guest's, so commands can't signal them.
func NewPool(c Commands, threads int) (*Pool, error) { return NewThreads(threads, c.take) }

// take gives the calling thread the identity.
func (c Commands) take() error {
	if c.Separate {
		if err := SetGroups(c.Groups...); err != nil {
			return err
		}
		if err := SetEffective(c.UID, c.GID); err != nil {
			return err
		}
	}
	if c.Root {
		return LimitCapabilities(wire.RootCapabilities)
	}
	return nil
}

// Do runs f on one of the threads, once one is free, and waits for it.
func (p *Pool) Do(f func()) { p.DoUnless(nil, f) }

// DoUnless is Do, but returns without running f if stop is closed first.
func (p *Pool) DoUnless(stop <-chan struct{}, f func()) {
	done := make(chan struct{})
	select {
	case p.work <- func() {
		defer close(done)
		f()
	}:
		<-done
	case <-stop:
	}
}
