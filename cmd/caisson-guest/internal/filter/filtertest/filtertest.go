// Package filtertest makes seccomp filters for tests of calls that fail, and lets
// descriptors run out.
package filtertest

import "golang.org/x/sys/unix"

// offsetArgs is the offset of the arguments in struct seccomp_data.
const offsetArgs = 16

// Refuse returns a filter that fails a system call with errno if its first
// arguments are args, and allows all others.
func Refuse(errno unix.Errno, call uint32, args ...uint32) []unix.SockFilter {
	var filter []unix.SockFilter
	left := 2 * (len(args) + 1) // instructions up to the refusal
	match := func(offset, value uint32) {
		left -= 2
		filter = append(
			filter,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: uint8(left + 1)},
		)
	}
	match(0, call)
	for i, arg := range args {
		match(uint32(offsetArgs+8*i), arg)
	}
	return append(
		filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	)
}
