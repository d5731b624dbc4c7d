package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernelFeatures are what the packages below sandbox use of Linux, with the
// version that brought it.
func kernelFeatures() []feature {
	newer := func(version string) string { return "Use Linux " + version + " or newer." }
	return []feature{
		{name: "openat2", needed: true, mend: newer("5.6"), try: func() error {
			fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{name: "pidfd_open", needed: true, mend: newer("5.3"), try: func() error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{
			name: "seccomp filters", mend: "Use a kernel with CONFIG_SECCOMP_FILTER; gvisor does without.",
			lost: "docker and runc would have no system call filter, and start nothing",
			// A filter that is nowhere: a kernel that knows them reads it (seccomp(2)).
			try: func() error {
				return exists(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0), unix.EFAULT)
			},
		},
		{
			name: "id-mapped mounts", rootOnly: true, mend: newer("5.12"),
			lost: "commands run as the workspace's owner's own uid",
			try:  func() error { return exists(unix.MountSetattr(-1, "", 0, &unix.MountAttr{}), unix.EBADF) },
		},
		{
			name: "overlay", mend: "As root: modprobe overlay; --mode bind needs none.",
			lost: "--mode overlay can't be used by gvisor and runc",
			try: func() error {
				text, err := os.ReadFile("/proc/filesystems")
				if err == nil && !strings.Contains(string(text), "\toverlay\n") {
					err = errors.New("it is not in /proc/filesystems")
				}
				return err
			},
		},
	}
}

// exists says whether a system call that was given nonsense is there: the
// answer to nonsense is known.
func exists(err error, known ...unix.Errno) error {
	for _, errno := range known {
		if errors.Is(err, errno) {
			return nil
		}
	}
	if err == nil {
		return nil
	}
	return err
}

// tryUserNamespace starts a program that is not there in a user namespace of
// its own: the namespace is made before the program is looked for.
func tryUserNamespace() error {
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
	return fmt.Errorf("none can be made: %w", err)
}
