package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var secrets = []string{
	"/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/latency_stats",
	"/proc/interrupts", "/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	"/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/sys/fs/pstore",
	"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg",
}

var devices = []string{
	"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue", "fd", "stdin", "stdout", "stderr", "core",
}

// kernelFiles prints what can be read or written of the kernel but must not be:
// "read PATH", "write PATH", "device NAME". The first line is a control.
func kernelFiles([]string) error {
	if f, err := os.OpenFile("/proc/self/comm", os.O_WRONLY, 0); err == nil {
		f.Close()
		fmt.Println("control")
	}
	for _, path := range secrets {
		if isReadable(path) {
			fmt.Println("read", path)
		}
	}
	for _, root := range []string{"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/sys/fs/cgroup", "/sys/kernel", "/sys/module", "/sys/power"} {
		printWritableBelow(root)
	}
	for _, path := range []string{"/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/proc/1/oom_adj", "/proc/mtrr", "/sys/kernel/uevent_helper"} {
		if openWrite(path) == nil {
			fmt.Println("write", path)
		}
	}
	entries, err := os.ReadDir("/dev")
	for _, e := range entries {
		if !slices.Contains(devices, e.Name()) {
			fmt.Println("device", e.Name())
		}
	}
	return err
}

// isReadable reports whether a file's byte or a directory's entry can be read.
func isReadable(path string) bool {
	if entries, err := os.ReadDir(path); err == nil {
		return len(entries) > 0
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	n, _ := f.Read(make([]byte, 1))
	return n > 0
}

func printWritableBelow(root string) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // what can't be looked at can't be written
		}
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
			fmt.Println("write", path)
		}
		return nil
	})
}

// findWritable prints the directories, three levels deep, in which a file can
// be made, except the workspace.
func findWritable([]string) error {
	return filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if slices.Contains([]string{"/proc", "/sys", "/workspace"}, path) || strings.Count(path, "/") > 3 {
			return fs.SkipDir
		}
		name := filepath.Join(path, "probe-was-here")
		if f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			os.Remove(name)
			fmt.Println(path)
		}
		return nil
	})
}

// printOverwritable prints the running programs, and the guest's, that can be
// opened for writing, except its own. A busy one counts: the permission is
// there, only the moment is wrong.
func printOverwritable(args []string) error {
	files, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	for _, path := range slices.Concat(files, []string{"/.caisson/guest"}, args) {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, own) {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		if err == nil || errors.Is(err, unix.ETXTBSY) {
			fmt.Println(path)
		}
	}
	return nil
}

func printTerminal([]string) error {
	if f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0); err == nil {
		f.Close()
		fmt.Println("controlling terminal")
	}
	for fd := range 3 {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
			fmt.Println("terminal at", fd)
		}
	}
	if sid, err := unix.Getsid(0); err == nil && sid == os.Getpid() {
		fmt.Println("leads its session")
	}
	return nil
}

// printConnectable prints the host-served sockets and FIFOs that can be reached
// by path.
func printConnectable(paths []string) error {
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if info.Mode()&os.ModeSocket != 0 {
			if c, err := net.DialTimeout("unix", path, 2*time.Second); err == nil {
				c.Close()
				fmt.Println(path)
			}
			continue
		}
		// Without a writer this open of a FIFO fails with ENXIO.
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
			fmt.Println(path)
		}
	}
	return nil
}

// printReplaceable prints the paths that it could replace by a symlink.
func printReplaceable(paths []string) error {
	for _, path := range paths {
		if os.Rename(path, path+".old") == nil || os.Remove(path) == nil || os.Symlink("/tmp", path) == nil {
			fmt.Println(path)
		}
	}
	return nil
}

func printNamespaces([]string) error {
	entries, err := os.ReadDir("/proc/self/ns")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/ns/" + e.Name()); err == nil && !strings.Contains(e.Name(), "_for_") {
			fmt.Println(to)
		}
	}
	return err
}

func printRlimits([]string) error {
	for name, number := range map[string]int{
		"core": unix.RLIMIT_CORE, "fsize": unix.RLIMIT_FSIZE, "memlock": unix.RLIMIT_MEMLOCK, "msgqueue": unix.RLIMIT_MSGQUEUE,
		"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK,
	} {
		var l unix.Rlimit
		if err := unix.Getrlimit(number, &l); err != nil {
			return err
		}
		fmt.Println(name, int64(l.Max))
	}
	return nil
}
