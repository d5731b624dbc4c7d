package oci

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// TryUserNamespace returns nil if this process can make a user namespace, or
// the reason why not. It starts a nonexistent program in one: the kernel makes
// the namespace before it looks for the program.
func TryUserNamespace() error {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	groups := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	p, err := os.StartProcess("/proc/self/caisson-is-not-here", []string{"caisson"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: groups},
	})
	if err == nil {
		_, err = p.Wait() // can't be
		return err
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		err = pathErr.Err
	}
	return err
}

// TryMount returns nil if this process can change mounts, or the reason why
// not. The kernel checks the permission before the invalid descriptor.
func TryMount() error {
	err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{})
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}
