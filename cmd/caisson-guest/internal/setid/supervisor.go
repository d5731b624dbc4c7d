package setid

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter"
)

// notification is struct seccomp_notif (linux/seccomp.h).
type notification struct {
	id    uint64
	pid   uint32 // of the calling thread
	flags uint32
	call  int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

// descriptor is struct seccomp_notif_addfd.
type descriptor struct {
	id                         uint64
	flags, source, target, how uint32
}

// supervisor answers the notifications of one filter.
type supervisor struct {
	listener uintptr
	root     int // O_PATH; commands have the guest's root
	user     int64
}

// AnyUser makes Supervise answer every user's calls.
const AnyUser = -1

// Choose returns what the commands' filter does with calls that it can't
// decide, as this kernel allows.
func Choose() filter.SetID {
	if kernelRefuses() {
		return filter.AllowSetID
	}
	if hasNotifications() {
		return filter.NotifySetID
	}
	return filter.RefuseSetID
}

// kernelRefuses reports whether the kernel itself refuses files the bits. It
// tries on an anonymous file in memory.
func kernelRefuses() bool {
	fd, err := unix.MemfdCreate("caisson-set-id", unix.MFD_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	for _, bit := range []uint32{unix.S_ISUID, unix.S_ISGID} {
		if unix.Fchmod(fd, bit|0o755) != unix.EPERM {
			return false
		}
	}
	return unix.Fchmod(fd, 0o755) == nil
}

// hasNotifications reports whether the kernel has notifications of the size
// known here.
func hasNotifications() bool {
	var sizes struct{ notification, response, data uint16 }
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	return errno == 0 && uintptr(sizes.notification) == unsafe.Sizeof(notification{}) &&
		uintptr(sizes.response) == unsafe.Sizeof(response{})
}

// Supervise answers the notifications of listener as long as the process lives.
// do runs a function with the identity of user, a uid. Other users' calls get
// EPERM: if made as user, they would have its rights.
func Supervise(listener int, user int64, do func(func())) error {
	if err := unix.SetNonblock(listener, true); err != nil {
		return fmt.Errorf("supervise modes: %w", err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("supervise modes: %w", err)
	}
	file := os.NewFile(uintptr(listener), "seccomp")
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("supervise modes: %w", err)
	}
	s := &supervisor{listener: uintptr(listener), root: root, user: user}
	go func() {
		defer func() { _ = file.Close() }()
		for {
			var n notification
			received := false
			// The runtime's poller waits, so that no thread has to.
			err := conn.Read(func(uintptr) bool {
				if !s.isReady() {
					return false
				}
				received = s.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) == 0
				return true
			})
			if err != nil {
				return // the kernel then answers ENOSYS to all callers
			}
			if received { // otherwise the caller is gone
				do(func() { s.answerCall(&n) })
			}
		}
	}()
	return nil
}

// isReady reports whether a notification waits: otherwise receiving one would
// block.
func (s *supervisor) isReady() bool {
	p := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
	_, _ = unix.Poll(p, 0) // no events if it fails
	return p[0].Revents&unix.POLLIN != 0
}

func (s *supervisor) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, s.listener, request, uintptr(arg))
	return errno
}

func (s *supervisor) answerCall(n *notification) {
	c := caller{thread: int(n.pid), root: s.root, waits: func() bool {
		return s.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) == 0
	}}
	made, err := nothing, error(unix.EPERM)
	if s.user == AnyUser || c.isUser(s.user) {
		made, err = c.performCall(int(n.call), n.args)
	}
	if err == nil && made.fd != nothing.fd {
		// The descriptor and the answer arrive together, or neither does.
		d := descriptor{id: n.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, source: uint32(made.fd), how: made.closeOnExec}
		errno := s.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&d))
		_ = unix.Close(made.fd)
		if errno == 0 {
			return
		}
		err = errno
	}
	r := response{id: n.id, errno: -int32(errnoOf(err))}
	// It fails if the caller was killed meanwhile.
	_ = s.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// errnoOf returns an error's number: 0 for nil, EPERM if it has none.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return unix.EPERM
}
