// Package probe is the guest's binary started as a command. It tries what a
// command must not be able to do, and reports the results.
package probe

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Words that make the guest's binary a probe.
const (
	// Word makes it try everything and write a wire.Probe.
	Word = "probe"
	// IdleWord makes it wait to be inspected and killed.
	IdleWord = "idle"
)

// Run tries everything and writes the findings. It returns an exit status.
func Run() int {
	p := wire.Probe{Results: map[string]string{}, Descriptors: openDescriptors()}
	for _, a := range allAttempts() {
		p.Results[a.name] = errnoName(a.try())
	}
	if json.NewEncoder(os.Stdout).Encode(p) != nil {
		return 1
	}
	return 0
}

// Idle waits until it is killed, or its standard input ends.
func Idle() int {
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func errnoName(errno unix.Errno) string {
	if errno == 0 {
		return "ok"
	}
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return strconv.Itoa(int(errno))
}

// openDescriptors returns the open descriptors below 64 without close-on-exec, which
// are the inherited ones. It tests each, because listing them would open another.
func openDescriptors() []int {
	var out []int
	for fd := range 64 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			out = append(out, fd)
		}
	}
	return out
}

// attempt is something that must fail. If it succeeds, it does no harm, because the
// process ends right after.
type attempt struct {
	name string
	try  func() unix.Errno
}

func tryCall(number, a, b uintptr) func() unix.Errno {
	return func() unix.Errno {
		_, _, errno := unix.RawSyscall6(number, a, b, 0, 0, 0, 0)
		return errno
	}
}

func tryOpen(name string, flags int) func() unix.Errno {
	return func() unix.Errno {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return 0
		}
		return errnoOf(err)
	}
}

func errnoOf(err error) unix.Errno {
	errno, _ := errors.AsType[unix.Errno](err)
	return errno
}

func allAttempts() []attempt {
	const guest, pid = "/proc/1", 1 // the parent may be a shim
	return []attempt{
		// A kernel that accepts a call answers EINVAL, EFAULT or the like to
		// these arguments, so ENOSYS and EPERM can only come from a filter.
		{"clone3", tryCall(unix.SYS_CLONE3, 0, 0)},
		{"clone-newuser", tryCall(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS, 0)},
		{"unshare-newuser", tryCall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0)},
		{"setns", tryCall(unix.SYS_SETNS, ^uintptr(0), 0)},
		{"setuid-root", tryCall(unix.SYS_SETUID, 0, 0)},
		{"setgroups", tryCall(unix.SYS_SETGROUPS, 0, 0)},
		{"kill-guest", tryCall(unix.SYS_KILL, pid, 0)},
		{"ptrace-guest", tryCall(unix.SYS_PTRACE, unix.PTRACE_ATTACH, pid)},
		{"read-guest-memory", tryOpen(guest+"/mem", unix.O_RDONLY)},
		{"read-guest-environ", tryOpen(guest+"/environ", unix.O_RDONLY)},
		{"list-guest-descriptors", tryOpen(guest+"/fd", unix.O_RDONLY|unix.O_DIRECTORY)},
		{"guest-root", tryOpen(guest+"/root", unix.O_PATH)},
		{"io-uring", tryCall(unix.SYS_IO_URING_SETUP, 1, 0)},
		{"bpf", tryCall(unix.SYS_BPF, 0, 0)},
		{"userfaultfd", tryCall(unix.SYS_USERFAULTFD, 0, 0)},
		{"perf-event-open", tryCall(unix.SYS_PERF_EVENT_OPEN, 0, 0)},
		{"keyctl", tryCall(unix.SYS_KEYCTL, 0, 0)},
		{"add-key", tryCall(unix.SYS_ADD_KEY, 0, 0)},
		{"mount", tryCall(unix.SYS_MOUNT, 0, 0)},
		{"fsopen", tryCall(unix.SYS_FSOPEN, 0, 0)},
		{"open-by-handle-at", tryCall(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0)},
		{"kexec-load", tryCall(unix.SYS_KEXEC_LOAD, 0, 0)},
		{"personality", tryCall(unix.SYS_PERSONALITY, 0x0040000, 0)},
		{"socket-vsock", tryCall(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)},
		{"socket-alg", tryCall(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET)},
		{"socket-packet", tryCall(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)},
		{"write-root", tryOpen("/caisson-probe", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)},
	}
}
