package filter

import "golang.org/x/sys/unix"

// auditArch is the processor that calls must be made for; the 32-bit way in
// (int 0x80) is another.
const auditArch = unix.AUDIT_ARCH_X86_64

// foreignBit marks calls of the x32 ABI (__X32_SYSCALL_BIT).
const foreignBit = 0x40000000

// refusedHere lists the refused calls that only this processor has.
var refusedHere = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT}

// Calls that only this processor has, with the argument that holds the mode, or
// the flags before it.
var (
	changeModeHere = map[uint32]int{unix.SYS_CHMOD: 1}
	openFileHere   = map[uint32]int{unix.SYS_OPEN: 1}
	createFileHere = map[uint32]int{unix.SYS_CREAT: 1, unix.SYS_MKNOD: 1}
)
