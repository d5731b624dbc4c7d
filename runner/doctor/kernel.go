package doctor

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelFeatures returns the features of Linux that the packages below sandbox use,
// with the first version that has each.
func kernelFeatures(tryMount func() error) []feature {
	newer := func(version string) string { return "Use Linux " + version + " or newer." }
	return []feature{
		{name: "openat2", needed: true, hint: newer("5.6"), try: func() error {
			fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{name: "pidfd_open", needed: true, hint: newer("5.3"), try: func() error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}},
		{
			name: "seccomp filters", hint: "Use a kernel with CONFIG_SECCOMP_FILTER; gvisor does without.",
			lost: "docker and runc would have no system call filter, and start nothing",
			// A kernel with filters tries to read one from address 0 (seccomp(2)).
			try: func() error {
				return checkCall(unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0), unix.EFAULT)
			},
		},
		{
			name: "id-mapped mounts", rootOnly: true, hint: newer("5.12"),
			lost:   "commands run as the workspace's owner's own uid, and can't run in a workspace of root's",
			denied: "The kernel has them, and forbids this process to mount, as in a container: run Caisson as root of the machine, or as an ordinary user who owns the workspace, for whom nothing has to be mapped.",
			try:    tryMount,
		},
		{
			name: "overlay", advice: AdviseOverlay,
			lost: "overlay mode can't be used by gvisor and runc",
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

// checkCall returns the error of a system call with invalid arguments, nil if it is
// one of those of a kernel that has the call.
func checkCall(err error, known ...unix.Errno) error {
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
