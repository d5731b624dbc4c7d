package oci

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// TryUserNamespace returns the reason for which this process can't make a user
// namespace, or nil. It starts a missing program in a namespace of its own: the
// namespace is made before the program is searched.
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

// TryMount returns the reason for which this process can't change mounts, or
// nil: the kernel refuses a process that may not before it examines the
// descriptor.
func TryMount() error {
	err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{})
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}
