package filter

import "golang.org/x/sys/unix"

// auditArch is the processor that calls must be made for; the 32-bit way in
// (int 0x80) is another.
const auditArch = unix.AUDIT_ARCH_X86_64

// foreignBit marks calls of the x32 ABI (__X32_SYSCALL_BIT).
const foreignBit = 0x40000000

// refusedHere is what only this processor has.
var refusedHere = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT}
