package filter

import "golang.org/x/sys/unix"

// Protect returns a filter for root commands, in addition to [Program]: they
// have the guest's user, and so the kernel's permission to signal and to limit
// it. It refuses the calls that do so to processes and threads with ids up to
// last, which are the guest's: it starts before all others.
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

// refuseUpTo refuses a first argument from 1 to last.
func refuseUpTo(last uint32) []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0),
		jump(unix.BPF_JEQ, 0, 1, 0),
		jump(unix.BPF_JGE, last+1, 0, 1),
		statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW),
		returnRefusal(),
	}
}

// refuseOthersLimits refuses prlimit64(pid, resource, new, old) with new limits
// for another process than the caller, which is pid 0.
func refuseOthersLimits() []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0),
		jump(unix.BPF_JEQ, 0, 4, 0),
		loadArg(2),
		jump(unix.BPF_JEQ, 0, 0, 3),
		loadWord(offsetArgs + 8*2 + 4),
		jump(unix.BPF_JEQ, 0, 0, 1),
		statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW),
		returnRefusal(),
	}
}
