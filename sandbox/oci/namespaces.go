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

// TryMount returns nil if this process can change mounts and its root, or the
// reason why not. The kernel checks the permission before the invalid
// arguments. Docker's seccomp profile forbids pivot_root(2) to root in a
// container even with CAP_SYS_ADMIN.
func TryMount() error {
	if err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{}); err != nil && !errors.Is(err, unix.EBADF) {
		return err
	}
	if err := unix.PivotRoot("", ""); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
