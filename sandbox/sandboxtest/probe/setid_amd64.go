package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setIDHere are attempts by calls that only this processor has.
func setIDHere() map[string]func(path string) error {
	raw := func(number uintptr, path string, args ...uintptr) error {
		text, err := unix.BytePtrFromString(path)
		if err != nil {
			return err
		}
		var a [2]uintptr
		copy(a[:], args)
		fd, _, errno := unix.Syscall(number, uintptr(unsafe.Pointer(text)), a[0], a[1])
		if errno != 0 {
			return errno
		}
		if number == unix.SYS_OPEN || number == unix.SYS_CREAT {
			return writeOpened(int(fd), nil)
		}
		return nil
	}
	return map[string]func(path string) error{
		"old chmod":            onMade(newFile, func(p string) error { return raw(unix.SYS_CHMOD, p, 0o4755) }),
		"old chmod, group":     onMade(newFile, func(p string) error { return raw(unix.SYS_CHMOD, p, 0o2755) }),
		"old chmod, directory": onMade(newDir, func(p string) error { return raw(unix.SYS_CHMOD, p, 0o2755) }),
		"chmod, high bits":     onMade(newFile, func(p string) error { return raw(unix.SYS_CHMOD, p, 1<<40|0o4755) }),
		"creat":                func(p string) error { return raw(unix.SYS_CREAT, p, 0o6755) },
		"old open":             func(p string) error { return raw(unix.SYS_OPEN, p, unix.O_CREAT|unix.O_WRONLY, 0o6755) },
		"old mknod":            func(p string) error { return raw(unix.SYS_MKNOD, p, unix.S_IFREG|0o6755) },
		"old mkdir":            func(p string) error { return raw(unix.SYS_MKDIR, p, 0o6755) },
		"chmod at a bad name":  onMade(newFile, func(string) error { return raw(unix.SYS_CHMOD, "/nowhere/at/all", 0o2755) }),
	}
}
