//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// statusField gives a field of /proc/self/status.
func statusField(status, name string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func facts([]string) error {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	status := string(raw)
	f := probing.Facts{
		UID: os.Getuid(), GID: os.Getgid(),
		CapInh: statusField(status, "CapInh"), CapPrm: statusField(status, "CapPrm"),
		CapEff: statusField(status, "CapEff"), CapBnd: statusField(status, "CapBnd"),
		CapAmb:     statusField(status, "CapAmb"),
		NoNewPrivs: statusField(status, "NoNewPrivs"), Seccomp: statusField(status, "Seccomp"),
	}
	if f.NoNewPrivs == "" { // gVisor's status has no such line
		if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil {
			f.NoNewPrivs = strconv.Itoa(v)
		}
	}
	if f.CapAmb == "" { // nor this one; ask for each capability
		f.CapAmb = ambient()
	}
	f.Groups = foreignGroups()
	if f.Interfaces, err = interfaces(); err != nil {
		return err
	}
	f.FDs = descriptors()
	f.Hostname, _ = os.Hostname()
	return json.NewEncoder(os.Stdout).Encode(f)
}

func ambient() string {
	var set uint64
	for c := range 41 {
		if v, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, uintptr(c), 0, 0); err == nil && v == 1 {
			set |= 1 << c
		}
	}
	return fmt.Sprintf("%016x", set)
}

// foreignGroups counts supplementary groups that mean something: the one that
// marks a command's processes is a high number that owns nothing.
func foreignGroups() int {
	groups, _ := os.Getgroups()
	groups = slices.DeleteFunc(groups, func(g int) bool { return g >= 1<<20 || g == os.Getgid() })
	return len(groups)
}

func interfaces() ([]string, error) {
	all, err := net.Interfaces()
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 || i.Name != "lo" {
			names = append(names, i.Name)
		}
	}
	return names, err
}

// descriptors lists the descriptors that were open when this program started:
// those that Go's runtime opened itself are anonymous, or the limits of CPU
// time that it follows (since Go 1.25).
func descriptors() []int {
	var fds []int
	for fd := range 1024 {
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc/") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
			fds = append(fds, fd)
		}
	}
	return fds
}

// forbidden is the table of calls that must fail; the control must not.
var forbidden = map[string]func() error{
	"control:getpid":      func() error { return raw(unix.SYS_GETPID) },
	"io_uring_setup":      func() error { return raw(unix.SYS_IO_URING_SETUP, 8, 0) },
	"bpf":                 func() error { return raw(unix.SYS_BPF, 5, 0, 0) },
	"userfaultfd":         func() error { return raw(unix.SYS_USERFAULTFD, 1) },
	"perf_event_open":     func() error { return raw(unix.SYS_PERF_EVENT_OPEN) },
	"keyctl":              func() error { return raw(unix.SYS_KEYCTL, 0, ^uintptr(2), 1) },
	"unshare user":        func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"unshare mount":       func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWNS) },
	"unshare net":         func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWNET) },
	"setgroups":           func() error { return syscall.Setgroups(nil) },
	"setuid 0":            func() error { return raw(unix.SYS_SETUID, 0) },
	"mount":               func() error { return unix.Mount("none", "/workspace", "tmpfs", 0, "") },
	"fsopen":              func() error { return raw(unix.SYS_FSOPEN) },
	"chroot":              func() error { return syscall.Chroot("/workspace") },
	"mknod block":         func() error { return unix.Mknod("/workspace/blk", unix.S_IFBLK|0o600, 7<<8) },
	"socket vsock":        func() error { return sock(unix.AF_VSOCK, unix.SOCK_STREAM) },
	"socket alg":          func() error { return sock(unix.AF_ALG, unix.SOCK_SEQPACKET) },
	"socket packet":       func() error { return sock(unix.AF_PACKET, unix.SOCK_RAW) },
	"socket raw":          func() error { return sock(unix.AF_INET, unix.SOCK_RAW) },
	"sethostname":         func() error { return unix.Sethostname([]byte("owned")) },
	"settimeofday":        func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) },
	"reboot":              func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"kexec_load":          func() error { return raw(unix.SYS_KEXEC_LOAD) },
	"init_module":         func() error { return raw(unix.SYS_INIT_MODULE) },
	"open_by_handle_at":   func() error { return raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0) },
	"ptrace pid 1":        func() error { return unix.PtraceSeize(1) },
	"process_vm_readv":    vmRead,
	"clone3":              func() error { return raw(unix.SYS_CLONE3, 0, 0) },
	"personality":         func() error { return raw(unix.SYS_PERSONALITY, 0x0400000) },
	"swapon":              func() error { return raw(unix.SYS_SWAPON) },
	"pivot_root":          func() error { return unix.PivotRoot("/workspace", "/workspace") },
	"setns":               func() error { return raw(unix.SYS_SETNS, 0, 0) },
	"priority":            func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) },
	"oom_score_adj":       func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) },
	"capset":              capset,
	"setxattr trusted":    func() error { return unix.Setxattr("/workspace", "trusted.x", []byte("1"), 0) },
	"write core_pattern":  func() error { return os.WriteFile("/proc/sys/kernel/core_pattern", []byte("|/x"), 0) },
	"write sysrq-trigger": func() error { return os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0) },
}

// raw makes a system call. EFAULT and EINVAL count as allowed: the call got
// past the filter and looked at its arguments.
func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno == syscall.EPERM || errno == syscall.ENOSYS || errno == syscall.EACCES {
		return errno
	}
	return nil
}

func sock(family, kind int) error {
	fd, err := syscall.Socket(family, kind, 0)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

func vmRead() error {
	b := make([]byte, 8)
	local := []unix.Iovec{{Base: &b[0], Len: 8}}
	_, err := unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	return err
}

func capset() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1, Permitted: 1, Inheritable: 1}}
	return unix.Capset(&hdr, &data[0])
}

// syscalls prints the names of the calls that succeeded.
func syscalls([]string) error {
	var allowed []string
	for name, call := range forbidden {
		if call() == nil {
			allowed = append(allowed, strings.ReplaceAll(name, " ", "-"))
		}
	}
	slices.Sort(allowed)
	fmt.Println(strings.Join(allowed, "\n"))
	return nil
}

// attackGuest prints what succeeded against PID 1.
func attackGuest([]string) error {
	if err := syscall.Kill(1, syscall.SIGKILL); err == nil {
		fmt.Println("SIGKILL")
	}
	if err := syscall.Kill(1, syscall.SIGSTOP); err == nil {
		fmt.Println("SIGSTOP")
	}
	for _, f := range []string{"mem", "environ", "maps", "fd/0", "fd/1", "root", "cwd", "exe"} {
		if file, err := os.OpenFile("/proc/1/"+f, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			if _, err := file.Read(make([]byte, 1)); err == nil || f == "root" || f == "cwd" || f == "fd/0" || f == "fd/1" {
				fmt.Println("/proc/1/" + f)
			}
			file.Close()
		}
	}
	for _, f := range []string{"/.caisson/guest", "/proc/1/exe"} {
		if file, err := os.OpenFile(f, os.O_WRONLY, 0); err == nil {
			fmt.Println("write", f)
			file.Close()
		}
	}
	return nil
}

func dial(addrs []string) error {
	for _, a := range addrs {
		if c, err := net.DialTimeout("tcp", a, 2*time.Second); err == nil {
			fmt.Println(a)
			c.Close()
		}
	}
	return nil
}

// grepFiles prints the files of args[1:] that hold the word args[0].
func grepFiles(args []string) error {
	for _, path := range args[1:] {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), args[0]) {
			fmt.Println(path)
		}
	}
	return nil
}

// exist prints the paths that can be opened for reading.
func exist(paths []string) error {
	for _, path := range paths {
		if f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			fmt.Println(path)
			f.Close()
		}
	}
	return nil
}

// writable prints the folders in which a file can be made, and the files that
// can be opened for writing.
func writable(paths []string) error {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		target := path
		if info.IsDir() {
			target = filepath.Join(path, "probe-was-here")
		}
		f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			continue
		}
		f.Close()
		if info.IsDir() {
			os.Remove(target)
		}
		fmt.Println(path)
	}
	return nil
}

// fill writes up to N bytes and prints how many it could, and the error.
func fill(args []string) error {
	limit, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer os.Remove(args[0])
	defer f.Close()
	var wrote int64
	buf := make([]byte, 64<<10)
	for wrote < limit {
		n, err := f.Write(buf)
		wrote += int64(n)
		if errors.Is(err, syscall.ENOSPC) {
			fmt.Println(wrote, "ENOSPC")
			return nil
		}
		if err != nil {
			return err
		}
	}
	fmt.Println(wrote, "none")
	return nil
}
