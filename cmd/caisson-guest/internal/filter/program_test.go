package filter

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// data returns a system call as struct seccomp_data.
func data(arch, number uint32, args ...uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, number)
	b = binary.LittleEndian.AppendUint32(b, arch)
	b = binary.LittleEndian.AppendUint64(b, 0) // instruction pointer
	for i := range 6 {
		var a uint64
		if i < len(args) {
			a = args[i]
		}
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	return b
}

// evaluate runs a program as the kernel does. It fails on instructions that are
// not used, on a jump out of the program, and on more instructions than
// bisection needs.
func evaluate(program []unix.SockFilter, call []byte) (uint32, error) {
	var a uint32
	const most = 30
	steps := 0
	for pc := 0; pc < len(program); pc++ {
		if steps++; steps > most {
			return 0, fmt.Errorf("more than %d instructions", most)
		}
		in := program[pc]
		taken := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(call[in.K:])
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K, nil
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			taken = a == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			taken = a >= in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			taken = a&in.K != 0
		default:
			return 0, fmt.Errorf("instruction %d has code %#x", pc, in.Code)
		}
		if taken {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	return 0, fmt.Errorf("it runs off its end")
}

func run(t *testing.T, call []byte) uint32 {
	t.Helper()
	return runAs(t, NotifySetID, call)
}

func runAs(t *testing.T, setID SetID, call []byte) uint32 {
	t.Helper()
	answer, err := evaluate(Program(setID), call)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

const (
	allow = unix.SECCOMP_RET_ALLOW
	eperm = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)

	noProtocol = unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)
	noFamily   = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)

	noOperation = unix.SECCOMP_RET_ERRNO | uint32(unix.EOPNOTSUPP)
)

// TestEveryNumber compares the program with its lists for each number, and far
// beyond the last.
func TestEveryNumber(t *testing.T) {
	refusedAlways := slices.Concat(refused, refusedHere)
	modes := []uint32{unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_OPENAT, unix.SYS_MKNODAT}
	for _, here := range []map[uint32]int{changeModeHere, openFileHere, createFileHere} {
		modes = slices.AppendSeq(modes, maps.Keys(here))
	}
	for _, n := range modes { // without a mode they are ordinary calls
		if slices.Contains(refusedAlways, n) {
			t.Errorf("call %d is in a list of what is refused", n)
		}
	}
	withArguments := []uint32{unix.SYS_OPENAT2, unix.SYS_CLONE3, unix.SYS_CLONE, unix.SYS_PERSONALITY, unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_IOCTL, unix.SYS_SETRLIMIT, unix.SYS_PRLIMIT64, unix.SYS_FALLOCATE}
	for n := range uint32(2000) {
		if slices.Contains(withArguments, n) {
			continue
		}
		want := uint32(allow)
		if slices.Contains(refusedAlways, n) {
			want = eperm
		}
		if got := run(t, data(auditArch, n)); got != want {
			t.Errorf("call %d: %#x, want %#x", n, got, want)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, tt := range []struct {
		name string
		call []byte
		want uint32
	}{
		{"clone3", data(auditArch, unix.SYS_CLONE3), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{"fork", data(auditArch, unix.SYS_CLONE, uint64(unix.SIGCHLD)), allow},
		{"vfork", data(auditArch, unix.SYS_CLONE, unix.CLONE_VFORK|unix.CLONE_VM|uint64(unix.SIGCHLD)), allow},
		{"thread", data(auditArch, unix.SYS_CLONE, 0x3d0f00), allow},
		{"new user namespace", data(auditArch, unix.SYS_CLONE, unix.CLONE_NEWUSER|uint64(unix.SIGCHLD)), eperm},
		{"new mount namespace", data(auditArch, unix.SYS_CLONE, unix.CLONE_NEWNS), eperm},
		{"new network namespace", data(auditArch, unix.SYS_CLONE, unix.CLONE_NEWNET), eperm},
		{"new cgroup namespace", data(auditArch, unix.SYS_CLONE, unix.CLONE_NEWCGROUP), eperm},
		{"high bits are not flags", data(auditArch, unix.SYS_CLONE, 1<<40|uint64(unix.SIGCHLD)), allow},
		{"asks for personality", data(auditArch, unix.SYS_PERSONALITY, 0xffffffff), allow},
		{"personality of Linux", data(auditArch, unix.SYS_PERSONALITY, 0), allow},
		{"no randomisation", data(auditArch, unix.SYS_PERSONALITY, 0x0040000), eperm},
		{"unix socket", data(auditArch, unix.SYS_SOCKET, unix.AF_UNIX), allow},
		{"inet socket", data(auditArch, unix.SYS_SOCKET, unix.AF_INET), allow},
		{"inet6 socket", data(auditArch, unix.SYS_SOCKET, unix.AF_INET6), allow},
		{"route socket", data(auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), allow},
		{"audit socket", data(auditArch, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT), noProtocol},
		{"vsock", data(auditArch, unix.SYS_SOCKET, unix.AF_VSOCK), noFamily},
		{"alg", data(auditArch, unix.SYS_SOCKET, unix.AF_ALG), noFamily},
		{"packet", data(auditArch, unix.SYS_SOCKET, unix.AF_PACKET), noFamily},
		{"family with high bits", data(auditArch, unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK), noFamily},
		{"unix pair", data(auditArch, unix.SYS_SOCKETPAIR, unix.AF_UNIX), allow},
		{"other pair", data(auditArch, unix.SYS_SOCKETPAIR, unix.AF_TIPC), eperm},
		{"window size", data(auditArch, unix.SYS_IOCTL, 0, unix.TIOCGWINSZ), allow},
		{"pushes input", data(auditArch, unix.SYS_IOCTL, 0, unix.TIOCSTI), eperm},
		{"pushes input, high bits", data(auditArch, unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI), eperm},
		{"console selection", data(auditArch, unix.SYS_IOCTL, 0, tioclinux), eperm},
		{"core files", data(auditArch, unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, 1<<20), done},
		{"core files of a process", data(auditArch, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, 1<<20), done},
		{"core files, high pointer", data(auditArch, unix.SYS_PRLIMIT64, 0, 1<<32|unix.RLIMIT_CORE, 1<<32), done},
		{"asks for core files", data(auditArch, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, 0, 1<<20), allow},
		{"open files", data(auditArch, unix.SYS_SETRLIMIT, unix.RLIMIT_NOFILE, 1<<20), allow},
		{"open files of a process", data(auditArch, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 1<<20), allow},
		{"allocates", data(auditArch, unix.SYS_FALLOCATE, 3, 0, 0, 1<<40), noOperation},
		{"allocates behind the end", data(auditArch, unix.SYS_FALLOCATE, 3, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<40), noOperation},
		{"allocates zeros", data(auditArch, unix.SYS_FALLOCATE, 3, unix.FALLOC_FL_ZERO_RANGE, 0, 1<<40), noOperation},
		{"punches a hole", data(auditArch, unix.SYS_FALLOCATE, 3, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<40), allow},
		{"collapses", data(auditArch, unix.SYS_FALLOCATE, 3, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 1<<40), allow},
		{"openat2", data(auditArch, unix.SYS_OPENAT2), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{"another processor", data(unix.AUDIT_ARCH_I386, 1), unix.SECCOMP_RET_KILL_PROCESS},
	} {
		if got := run(t, tt.call); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
	if foreignBit != 0 {
		for _, n := range []uint32{foreignBit, foreignBit | unix.SYS_PTRACE, 1<<32 - 1} {
			if got := run(t, data(auditArch, n)); got != eperm {
				t.Errorf("foreign call %#x: %#x", n, got)
			}
		}
	}
}

// TestRulesReturn checks that no path leaves a rule's body, where the next rule
// would compare the wrong value.
func TestRulesReturn(t *testing.T) {
	for _, r := range rulesOf(NotifySetID) {
		for i, in := range r.body {
			last := i + 1
			switch in.Code & 7 {
			case unix.BPF_RET:
				last = 0
			case unix.BPF_JMP:
				last += int(max(in.Jt, in.Jf))
			}
			if last >= len(r.body) {
				t.Errorf("call %d: instruction %d goes on at %d of %d", r.number, i, last, len(r.body))
			}
		}
	}
}

// TestSize: the kernel takes at most 4096 instructions, and jumps have one
// byte.
func TestSize(t *testing.T) {
	if n := len(Program(NotifySetID)); n > 512 {
		t.Errorf("%d instructions", n)
	}
}

// TestSetID checks the treatment of modes for each of the three kinds of
// kernels.
func TestSetID(t *testing.T) {
	const create, temporary = unix.O_CREAT | unix.O_WRONLY, unix.O_TMPFILE | unix.O_RDWR
	type call struct {
		number uint32
		mode   int // the argument
		flags  uint64
		// changes reports that the call changes an existing file's mode.
		changes bool
	}
	calls := []call{
		{number: unix.SYS_FCHMOD, mode: 1, changes: true},
		{number: unix.SYS_FCHMODAT, mode: 2, changes: true},
		{number: unix.SYS_FCHMODAT2, mode: 2, changes: true},
		{number: unix.SYS_OPENAT, mode: 3, flags: create},
		{number: unix.SYS_OPENAT, mode: 3, flags: temporary},
		{number: unix.SYS_MKNODAT, mode: 2},
	}
	for n, arg := range changeModeHere {
		calls = append(calls, call{number: n, mode: arg, changes: true})
	}
	for n, arg := range openFileHere {
		calls = append(calls, call{number: n, mode: arg + 1, flags: create}, call{number: n, mode: arg + 1, flags: temporary})
	}
	for n, arg := range createFileHere {
		calls = append(calls, call{number: n, mode: arg})
	}
	for _, action := range []SetID{RefuseSetID, NotifySetID, AllowSetID} {
		for _, c := range calls {
			for mode, want := range map[uint64]uint32{
				0: allow, 0o777: allow, 0o1777: allow, 1<<32 | 0o755: allow,
				0o2755: uint32(action), 0o102755: uint32(action), 1<<32 | 0o2755: uint32(action),
				0o4755: uint32(action), 0o6755: uint32(action), 0o4000: uint32(action),
			} {
				if c.changes && mode&unix.S_ISUID != 0 {
					want = eperm
				}
				args := make([]uint64, 6)
				if c.flags != 0 {
					args[c.mode-1] = c.flags
				}
				args[c.mode] = mode
				if got := runAs(t, action, data(auditArch, c.number, args...)); got != want {
					t.Errorf("action %#x, call %d, flags %#x, mode %#o: %#x, want %#x", action, c.number, c.flags, mode, got, want)
				}
				// Without a creating flag the mode is garbage.
				if c.flags != 0 {
					args[c.mode-1] = unix.O_RDWR | unix.O_DIRECTORY
					if got := runAs(t, action, data(auditArch, c.number, args...)); got != allow {
						t.Errorf("action %#x, call %d, mode %#o: %#x where nothing is created", action, c.number, mode, got)
					}
				}
			}
		}
	}
}

// TestProtect checks that the guest's processes can't be signalled or limited,
// and others can.
func TestProtect(t *testing.T) {
	const last = 20
	enosys := unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	minus := func(n int64) uint64 { return uint64(-n) }
	for _, tt := range []struct {
		name string
		call []byte
		want uint32
	}{
		{"guest", data(auditArch, unix.SYS_KILL, 1, 9), eperm},
		{"last thread", data(auditArch, unix.SYS_KILL, last, 9), eperm},
		{"first other", data(auditArch, unix.SYS_KILL, last+1, 9), allow},
		{"own group", data(auditArch, unix.SYS_KILL, 0, 9), allow},
		{"all", data(auditArch, unix.SYS_KILL, minus(1), 9), allow},
		{"group", data(auditArch, unix.SYS_KILL, minus(100), 9), allow},
		{"high bits", data(auditArch, unix.SYS_KILL, 1<<32|1, 9), eperm},
		{"thread", data(auditArch, unix.SYS_TKILL, last, 9), eperm},
		{"thread of a group", data(auditArch, unix.SYS_TGKILL, 1, last, 9), eperm},
		{"other thread", data(auditArch, unix.SYS_TGKILL, 100, 101, 9), allow},
		{"queued", data(auditArch, unix.SYS_RT_SIGQUEUEINFO, last, 9), eperm},
		{"queued to a thread", data(auditArch, unix.SYS_RT_TGSIGQUEUEINFO, 1, 5, 9), eperm},
		{"by descriptor", data(auditArch, unix.SYS_PIDFD_SEND_SIGNAL, 3, 9), enosys},
		{"own limit", data(auditArch, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, 1<<20), allow},
		{"limit of another", data(auditArch, unix.SYS_PRLIMIT64, 100, unix.RLIMIT_NOFILE, 1<<20), eperm},
		{"limit of another, high pointer", data(auditArch, unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, 1<<32), eperm},
		{"limit of another is read", data(auditArch, unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, 0, 1<<20), allow},
		{"another call", data(auditArch, unix.SYS_GETPID), allow},
	} {
		if got, err := evaluate(Protect(last), tt.call); err != nil || got != tt.want {
			t.Errorf("%s: %#x, %v, want %#x", tt.name, got, err, tt.want)
		}
	}
}
