// Command stage turns a process in new namespaces into a small container and
// becomes the guest in it, so that tests of the guest need no container runtime.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest/plan"
)

// exitLeader ends the process's first thread, so that the process, which lives
// on in another thread, is shown as a zombie.
func exitLeader() {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		panic("not on the first thread")
	}
	go func() {
		for {
			status, _ := os.ReadFile("/proc/self/status")
			if strings.Contains(string(status), "State:\tZ") {
				fmt.Println("up")
				select {}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "leaderless" {
		exitLeader()
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "stage:", err)
		os.Exit(1)
	}
}

func run() error {
	runtime.LockOSThread() // restrict changes this thread, which then executes
	var p plan.Plan
	if err := json.Unmarshal([]byte(os.Args[1]), &p); err != nil {
		return err
	}
	// The parent puts this process into cgroups first.
	if _, err := os.NewFile(plan.Gate, "gate").Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the test: %w", err)
	}
	if err := buildRoot(p); err != nil {
		return err
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	return unix.Exec("/.caisson/guest", []string{"caisson-guest"}, []string{"PATH=/.caisson"})
}

func buildRoot(p plan.Plan) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mount("tmpfs", p.Root, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	in := func(path string) string { return filepath.Join(p.Root, path) }
	for _, dir := range []string{"usr", "etc", "proc", "dev/pts", "tmp", "workspace", ".caisson", "home/agent", "sys/fs/cgroup"} {
		if err := os.MkdirAll(in(dir), 0o755); err != nil {
			return err
		}
	}
	for _, link := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if target, err := os.Readlink("/" + link); err == nil {
			if err := os.Symlink(target, in(link)); err != nil {
				return err
			}
		}
	}
	binds := []plan.Bind{
		{Source: "/usr", Path: "usr", ReadOnly: true},
		{Source: p.Guest, Path: ".caisson/guest", File: true, ReadOnly: true},
		{Source: p.Workspace, Path: "workspace"},
	}
	for _, dev := range []string{"null", "zero", "urandom", "full", "tty"} {
		binds = append(binds, plan.Bind{Source: "/dev/" + dev, Path: "dev/" + dev, File: true})
	}
	for _, b := range append(binds, p.Binds...) {
		if err := bindMount(b, in(b.Path)); err != nil {
			return err
		}
	}
	if err := mount("proc", in("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := mount("devpts", in("dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0600"); err != nil {
		return err
	}
	if err := os.Symlink("pts/ptmx", in("dev/ptmx")); err != nil {
		return err
	}
	for _, dir := range []string{"tmp", "home/agent"} {
		if err := mount("tmpfs", in(dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=256m"); err != nil {
			return err
		}
	}
	if err := os.WriteFile(in("etc/passwd"), []byte("root:x:0:0::/:/bin/false\nagent:x:10001:10001::/home/agent:/bin/sh\n"), 0o644); err != nil {
		return err
	}
	return enterRoot(p.Root)
}

func enterRoot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	return mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

func bindMount(b plan.Bind, target string) error {
	if b.File {
		f, err := os.Create(target)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	} else if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := mount(b.Source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID)
	if b.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	if !strings.HasPrefix(b.Path, "dev/") {
		flags |= unix.MS_NODEV
	}
	return mount("", target, "", flags, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// raiseLoopback brings the loopback interface up, as runtimes do.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("raise loopback: %w", err)
	}
	return nil
}

// dropCapabilities keeps only the capabilities that a backend gives the guest.
func dropCapabilities() error {
	wanted := uint64(1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP)
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if wanted>>c&1 == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Permitted: uint32(wanted), Effective: uint32(wanted)}}
	return unix.Capset(&head, &data[0])
}
