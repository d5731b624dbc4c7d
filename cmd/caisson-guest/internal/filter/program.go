package filter

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// The kernel limits a program to 4096 instructions (BPF_MAXINSNS); these have
// fewer than 512.

// namespaceFlags are the clone flags for new namespaces. CLONE_NEWTIME (0x80)
// is in clone's exit signal byte; only clone3 and unshare have it.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// rule decides one system call. body runs with an undefined accumulator and
// must always return.
type rule struct {
	number uint32
	body   []unix.SockFilter
}

// SetID selects the action for calls that could set a file's set-user-ID or
// set-group-ID bit. The filter can't decide them: it sees the mode, but not
// whether the path names a directory, and can't change arguments. chmod and its
// like are always refused the set-user-ID bit.
type SetID uint32

const (
	// RefuseSetID answers EPERM.
	RefuseSetID = SetID(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	// NotifySetID hands them to the filter's listener.
	NotifySetID = SetID(unix.SECCOMP_RET_USER_NOTIF)
	// AllowSetID leaves them to a kernel that refuses the bits itself.
	AllowSetID = SetID(unix.SECCOMP_RET_ALLOW)
)

// Program returns the filter for the processor that this binary is built for.
func Program(setID SetID) []unix.SockFilter { return assemble(rulesOf(setID)) }

// assemble returns a filter that decides by the rules and allows all other
// calls.
func assemble(rules []rule) []unix.SockFilter {
	p := []unix.SockFilter{
		loadWord(offsetArch),
		jump(unix.BPF_JEQ, auditArch, 1, 0),
		ret(unix.SECCOMP_RET_KILL_PROCESS),
		loadWord(offsetNumber),
	}
	if foreignBit != 0 {
		p = append(p, jump(unix.BPF_JGE, foreignBit, 0, 1), returnRefusal())
	}
	slices.SortFunc(rules, func(a, b rule) int { return cmp.Compare(a.number, b.number) })
	return append(p, searchRules(rules)...)
}

func rulesOf(setID SetID) []rule {
	rules := []rule{
		{unix.SYS_CLONE3, returnValue(returnErrno(unix.ENOSYS))},
		{unix.SYS_CLONE, refuseBits(0, namespaceFlags)},
		{unix.SYS_PERSONALITY, allowValues(0, 0, 0xffffffff)},
		{unix.SYS_SOCKETPAIR, allowValues(0, unix.AF_UNIX)},
		{unix.SYS_SOCKET, socketRule()},
		{unix.SYS_IOCTL, refuseValues(1, unix.TIOCSTI, tioclinux)},
		{unix.SYS_SETRLIMIT, keepCore()},
		{unix.SYS_PRLIMIT64, keepCoreOf()},
		{unix.SYS_FALLOCATE, refuseAllocation()},
		// No filter sees the mode, which is in memory.
		{unix.SYS_OPENAT2, returnValue(returnErrno(unix.ENOSYS))},
	}
	rules = append(rules, setIDRules(setID)...)
	for _, n := range slices.Concat(refused, refusedHere) {
		rules = append(rules, rule{n, returnValue(returnErrno(unix.EPERM))})
	}
	return rules
}

// searchRules finds the rule by bisection, so that an ordinary call costs about
// seven comparisons even if the filter is interpreted (gVisor).
func searchRules(rules []rule) []unix.SockFilter {
	if len(rules) <= 2 {
		var p []unix.SockFilter
		for _, r := range rules {
			p = append(p, jump(unix.BPF_JEQ, r.number, 0, uint8(len(r.body))))
			p = append(p, r.body...)
		}
		return append(p, returnValue(unix.SECCOMP_RET_ALLOW)...)
	}
	middle := len(rules) / 2
	below, above := searchRules(rules[:middle]), searchRules(rules[middle:])
	p := []unix.SockFilter{
		jump(unix.BPF_JGE, rules[middle].number, 0, 1),
		statement(unix.BPF_JMP|unix.BPF_JA, uint32(len(below))),
	}
	return slices.Concat(p, below, above)
}

// socketRule allows the profile's families: unix, internet, and netlink for
// routes. Others get the answer of a kernel without them, which programs
// expect: shadow's useradd gives up if EPERM refuses the audit socket.
func socketRule() []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0),
		jump(unix.BPF_JEQ, unix.AF_UNIX, 7, 0),
		jump(unix.BPF_JEQ, unix.AF_INET, 6, 0),
		jump(unix.BPF_JEQ, unix.AF_INET6, 5, 0),
		jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 3),
		loadArg(2),
		jump(unix.BPF_JEQ, unix.NETLINK_ROUTE, 2, 0),
		ret(returnErrno(unix.EPROTONOSUPPORT)),
		ret(returnErrno(unix.EAFNOSUPPORT)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
}

// refuseAllocation answers as file systems that can't allocate room do, so that programs
// write instead: fallocate takes all of a disk between two looks at what is left of it. It
// may give room back.
func refuseAllocation() []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(1),
		jump(unix.BPF_JSET, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_COLLAPSE_RANGE, 1, 0),
		ret(returnErrno(unix.EOPNOTSUPP)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
}

// done answers "it worked" to a call that is not made.
const done = unix.SECCOMP_RET_ERRNO

// keepCore leaves the limit of core files at 1 byte and reports success. Only
// with that value does a core pattern that is a pipe not run its program, as
// root on the host (coredump_pipe in fs/coredump.c). A command could lower its
// limit to 0, with which it runs. An error would end programs that switch core
// files off before they touch a secret, such as GnuPG.
func keepCore() []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0),
		jump(unix.BPF_JEQ, unix.RLIMIT_CORE, 0, 1),
		ret(done),
		ret(unix.SECCOMP_RET_ALLOW),
	}
}

// keepCoreOf is keepCore for prlimit64(pid, resource, new, old), which only
// reads the limit if new is nil.
func keepCoreOf() []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(1),
		jump(unix.BPF_JEQ, unix.RLIMIT_CORE, 0, 4),
		loadArg(2),
		jump(unix.BPF_JEQ, 0, 0, 3),
		loadWord(offsetArgs + 8*2 + 4),
		jump(unix.BPF_JEQ, 0, 0, 1),
		ret(unix.SECCOMP_RET_ALLOW),
		ret(done),
	}
}

// The kernel uses only the low 32 bits of all tested arguments (they are int or
// unsigned int, and clone takes lower_32_bits), and so does the filter.

func refuseBits(arg int, bits uint32) []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(arg),
		jump(unix.BPF_JSET, bits, 0, 1),
		returnRefusal(),
		ret(unix.SECCOMP_RET_ALLOW),
	}
}

func allowValues(arg int, values ...uint32) []unix.SockFilter {
	p := []unix.SockFilter{loadArg(arg)}
	for i, v := range values {
		p = append(p, jump(unix.BPF_JEQ, v, uint8(len(values)-i), 0))
	}
	return append(p, returnRefusal(), ret(unix.SECCOMP_RET_ALLOW))
}

func refuseValues(arg int, values ...uint32) []unix.SockFilter {
	p := []unix.SockFilter{loadArg(arg)}
	for i, v := range values {
		p = append(p, jump(unix.BPF_JEQ, v, uint8(len(values)-i), 0))
	}
	return append(p, ret(unix.SECCOMP_RET_ALLOW), returnRefusal())
}

func returnErrno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

func returnRefusal() unix.SockFilter { return ret(returnErrno(unix.EPERM)) }

func returnValue(value uint32) []unix.SockFilter { return []unix.SockFilter{ret(value)} }

func loadWord(offset uint32) unix.SockFilter {
	return statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset)
}

// loadArg loads an argument's low word; both processors are little-endian.
func loadArg(n int) unix.SockFilter { return loadWord(uint32(offsetArgs + 8*n)) }

func ret(value uint32) unix.SockFilter { return statement(unix.BPF_RET|unix.BPF_K, value) }

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

// tioclinux is TIOCLINUX, which x/sys does not have for every processor.
const tioclinux = 0x541c

// refused are calls of every processor that no command needs.
var refused = []uint32{
	// Namespaces, mounts and roots.
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	// Other processes.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	// Kernel interfaces with a history.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	// State of the whole machine.
	unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP,
}

// Protect returns a filter for root commands, in addition to [Program]. With
// the guest's user, they may signal and limit it. The filter refuses that for
// processes and threads with ids up to last, which are the guest's: it starts
// before all others.
func Protect(last uint32) []unix.SockFilter {
	rules := []rule{
		{unix.SYS_KILL, refuseUpTo(last)},
		{unix.SYS_TKILL, refuseUpTo(last)},
		{unix.SYS_TGKILL, refuseUpTo(last)},
		{unix.SYS_RT_SIGQUEUEINFO, refuseUpTo(last)},
		{unix.SYS_RT_TGSIGQUEUEINFO, refuseUpTo(last)},
		// The process is in a descriptor. Programs fall back to kill.
		{unix.SYS_PIDFD_SEND_SIGNAL, returnValue(returnErrno(unix.ENOSYS))},
		{unix.SYS_PRLIMIT64, refuseOthersLimits()},
	}
	return assemble(rules)
}

func refuseUpTo(last uint32) []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0),
		jump(unix.BPF_JEQ, 0, 1, 0),
		jump(unix.BPF_JGE, last+1, 0, 1),
		ret(unix.SECCOMP_RET_ALLOW),
		returnRefusal(),
	}
}

// refuseOthersLimits refuses prlimit64(pid, resource, new, old) with new limits
// for a process other than the caller, which is pid 0.
func refuseOthersLimits() []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0),
		jump(unix.BPF_JEQ, 0, 4, 0),
		loadArg(2),
		jump(unix.BPF_JEQ, 0, 0, 3),
		loadWord(offsetArgs + 8*2 + 4),
		jump(unix.BPF_JEQ, 0, 0, 1),
		ret(unix.SECCOMP_RET_ALLOW),
		returnRefusal(),
	}
}
