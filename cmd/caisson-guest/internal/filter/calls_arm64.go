package filter

import "golang.org/x/sys/unix"

// auditArch is the processor that calls must be made for. 32-bit programs have
// another value.
const auditArch = unix.AUDIT_ARCH_AARCH64

// foreignBit is zero: no second ABI has the same audit value.
const foreignBit = 0

// refusedHere are refused calls that only this processor has.
var refusedHere []uint32

// Calls that only this processor has: none.
var changeModeHere, openFileHere, createFileHere map[uint32]int
