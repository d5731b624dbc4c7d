package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

func processorCalls() map[string]func() error {
	return map[string]func() error{
		"iopl":           callWith(unix.SYS_IOPL, 3),
		"ioperm":         callWith(unix.SYS_IOPERM, 0x80, 1, 1),
		"modify_ldt":     callWith(unix.SYS_MODIFY_LDT),
		"x32 getpid":     func() error { return runELF(elf64(entryX32)) },
		"int 0x80":       func() error { return runELF(elf64(entry32)) },
		"32-bit program": func() error { return runELF(elf32(program32)) },
		"socketcall":     func() error { return runELF(elf64(socketcall32)) },
	}
}

// Machine code that enters the kernel the 32-bit way and exits with 0 if that
// worked.
var (
	// mov eax,20 (getpid); int 0x80; cmp eax,0; setle al; movzx edi,al;
	// mov eax,231 (exit_group of 64 bits); syscall
	entry32 = []byte{
		0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x83, 0xf8, 0, 0x0f, 0x9e, 0xc0, 0x0f, 0xb6, 0xf8, 0xb8, 231, 0, 0, 0, 0x0f, 0x05,
	}
	// mov eax,102 (socketcall); mov ebx,1 (socket); mov ecx,arguments;
	// int 0x80; sub eax,3; cmp eax,1021; setae al; movzx edi,al; mov eax,231;
	// syscall; arguments: AF_UNIX, SOCK_STREAM, 0. The code lies at 0x400078.
	socketcall32 = []byte{
		0xb8, 102, 0, 0, 0, 0xbb, 1, 0, 0, 0, 0xb9, 0xa3, 0, 0x40, 0, 0xcd, 0x80, 0x83, 0xe8, 3, 0x3d, 0xfd, 3, 0, 0,
		0x0f, 0x93, 0xc0, 0x0f, 0xb6, 0xf8, 0xb8, 231, 0, 0, 0, 0x0f, 0x05,
		0x90, 0x90, 0x90, 0x90, 0x90,
		1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	}
	// mov eax,0x40000027 (getpid of x32); syscall; cmp eax,0; setle al;
	// movzx edi,al; mov eax,231; syscall. A profile may kill the thread, which
	// here is the process.
	entryX32 = []byte{
		0xb8, 0x27, 0, 0, 0x40, 0x0f, 0x05, 0x83, 0xf8, 0, 0x0f, 0x9e, 0xc0, 0x0f, 0xb6, 0xf8, 0xb8, 231, 0, 0, 0, 0x0f, 0x05,
	}
	// mov eax,1 (exit); xor ebx,ebx; int 0x80
	program32 = []byte{0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80}
)

// runELF runs a new program. If it is killed, or the kernel does not take it,
// it was refused.
func runELF(program []byte) error {
	dir, err := os.MkdirTemp("", "probe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "program")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		return err
	}
	err = exec.Command(path).Run()
	exit, ran := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case !ran:
		return fmt.Errorf("%w: %w", unix.ENOSYS, err)
	case exit.Sys().(syscall.WaitStatus).Signaled() && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGSYS:
		return unix.EPERM
	}
	return unix.ENOSYS // this kernel has no such entry
}

func elf64(code []byte) []byte {
	const base, header = 0x400000, 64 + 56
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	put(&b, uint16(2), uint16(62), uint32(1), uint64(base+header), uint64(64), uint64(0), uint32(0))
	put(&b, uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0))
	size := uint64(header + len(code))
	put(&b, uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000))
	b.Write(code)
	return b.Bytes()
}

func elf32(code []byte) []byte {
	const base, header = 0x8048000, 52 + 32
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	put(&b, uint16(2), uint16(3), uint32(1), uint32(base+header), uint32(52), uint32(0), uint32(0))
	put(&b, uint16(52), uint16(32), uint16(1), uint16(0), uint16(0), uint16(0))
	size := uint32(header + len(code))
	put(&b, uint32(1), uint32(0), uint32(base), uint32(base), size, size, uint32(5), uint32(0x1000))
	b.Write(code)
	return b.Bytes()
}

func put(b *bytes.Buffer, fields ...any) {
	for _, f := range fields {
		_ = binary.Write(b, binary.LittleEndian, f) // fixed size, to memory
	}
}
