package main

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/oci"
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
			lost:   "commands run as the workspace's owner's own uid, and can't run in a workspace of root's",
			denied: "The kernel has them, and forbids this process to mount, as in a container: run Caisson as root of the machine, or as an ordinary user who owns the workspace, for whom nothing has to be mapped.",
			try:    oci.TryMount,
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
