package guest

import (
	"fmt"
	"math/bits"
)

// capabilityNames are Linux's capabilities by number (include/uapi/linux/capability.h, 6.12).
var capabilityNames = [...]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

// The capabilities that the guest needs, as bits.
const guestCapabilities = 1<<5 | 1<<6 | 1<<7 | 1<<8 // KILL, SETGID, SETUID, SETPCAP

// listCapabilities returns the names of the bits of a set, in order. It is never
// nil, so that JSON distinguishes "none" from "unknown".
func listCapabilities(set uint64) []string {
	out := []string{}
	for ; set != 0; set &= set - 1 {
		n := bits.TrailingZeros64(set)
		name := fmt.Sprintf("CAP_%d", n)
		if n < len(capabilityNames) {
			name = capabilityNames[n]
		}
		out = append(out, name)
	}
	return out
}
