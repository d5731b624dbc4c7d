package filter

import "golang.org/x/sys/unix"

// auditArch is the processor that calls must be made for. The 32-bit entry (int
// 0x80) has another value.
const auditArch = unix.AUDIT_ARCH_X86_64

// foreignBit marks calls of the x32 ABI (__X32_SYSCALL_BIT).
const foreignBit = 0x40000000

// refusedHere are refused calls that only this processor has.
var refusedHere = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT}

// Calls that only this processor has, with the index of the mode argument, or
// of the flags before it.
var (
	changeModeHere = map[uint32]int{unix.SYS_CHMOD: 1}
	openFileHere   = map[uint32]int{unix.SYS_OPEN: 1}
	createFileHere = map[uint32]int{unix.SYS_CREAT: 1, unix.SYS_MKNOD: 1}
)
