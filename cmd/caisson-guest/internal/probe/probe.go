// Package probe is what the guest's binary does when it is started as a
// command: it tries what a command must not be able to do, and tells.
package probe

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Words that make the guest's binary a probe.
const (
	// Word makes it try everything and write a wire.Probe.
	Word = "probe"
	// IdleWord makes it wait to be looked at and killed.
	IdleWord = "idle"
)

// Run tries everything and writes the findings. It returns an exit status.
func Run() int {
	p := wire.Probe{Results: map[string]string{}, Descriptors: descriptors()}
	if self, err := identity.Read("/proc/self/status"); err == nil {
		p.Identity = self.Identity
	}
	for _, a := range attempts() {
		p.Results[a.name] = outcome(a.try())
	}
	if json.NewEncoder(os.Stdout).Encode(p) != nil {
		return 1
	}
	return 0
}

// Idle waits until it is killed, or its standard input ends.
func Idle() int {
	buf := make([]byte, 1)
	for {
		if n, err := os.Stdin.Read(buf); n == 0 || err != nil {
			return 0
		}
	}
}

func outcome(errno unix.Errno) string {
	if errno == 0 {
		return "ok"
	}
	if name := unix.ErrnoName(errno); name != "" {
		return name
	}
	return strconv.Itoa(int(errno))
}

// descriptors are the open ones below 64, found by asking each: listing them
// would open another.
func descriptors() []int {
	var out []int
	for fd := range 64 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			out = append(out, fd)
		}
	}
	return out
}

// attempt is one thing that must fail. None of them does harm if it succeeds
// in a process that ends right after.
type attempt struct {
	name string
	try  func() unix.Errno
}

func call(number, a, b uintptr) func() unix.Errno {
	return func() unix.Errno {
		_, _, errno := unix.RawSyscall6(number, a, b, 0, 0, 0, 0)
		return errno
	}
}

func open(name string, flags int) func() unix.Errno {
	return func() unix.Errno {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return 0
		}
		return errnoOf(err)
	}
}

// errnoOf is the number in a system call's error, 0 for none.
func errnoOf(err error) unix.Errno {
	errno, _ := errors.AsType[unix.Errno](err)
	return errno
}

func attempts() []attempt {
	guest := "/proc/" + strconv.Itoa(os.Getppid())
	pid := uintptr(os.Getppid())
	return []attempt{
		// With these arguments a kernel that takes the call answers EINVAL,
		// EFAULT or the like, so that only a filter gives ENOSYS or EPERM.
		{"clone3", call(unix.SYS_CLONE3, 0, 0)},
		{"clone-newuser", call(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS, 0)},
		{"unshare-newuser", call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0)},
		{"setns", call(unix.SYS_SETNS, ^uintptr(0), 0)},
		{"setuid-root", call(unix.SYS_SETUID, 0, 0)},
		{"setgroups", call(unix.SYS_SETGROUPS, 0, 0)},
		{"kill-guest", call(unix.SYS_KILL, pid, 0)},
		{"ptrace-guest", call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, pid)},
		{"read-guest-memory", open(guest+"/mem", unix.O_RDONLY)},
		{"read-guest-environ", open(guest+"/environ", unix.O_RDONLY)},
		{"list-guest-descriptors", open(guest+"/fd", unix.O_RDONLY|unix.O_DIRECTORY)},
		{"guest-root", open(guest+"/root", unix.O_PATH)},
		{"io-uring", call(unix.SYS_IO_URING_SETUP, 1, 0)},
		{"bpf", call(unix.SYS_BPF, 0, 0)},
		{"userfaultfd", call(unix.SYS_USERFAULTFD, 0, 0)},
		{"perf-event-open", call(unix.SYS_PERF_EVENT_OPEN, 0, 0)},
		{"keyctl", call(unix.SYS_KEYCTL, 0, 0)},
		{"add-key", call(unix.SYS_ADD_KEY, 0, 0)},
		{"mount", call(unix.SYS_MOUNT, 0, 0)},
		{"fsopen", call(unix.SYS_FSOPEN, 0, 0)},
		{"open-by-handle-at", call(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0)},
		{"kexec-load", call(unix.SYS_KEXEC_LOAD, 0, 0)},
		{"personality", call(unix.SYS_PERSONALITY, 0x0040000, 0)},
		{"socket-vsock", call(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)},
		{"socket-alg", call(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET)},
		{"socket-packet", call(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)},
		{"write-root", open("/caisson-probe", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)},
	}
}
