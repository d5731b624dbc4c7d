package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const otherID = 33

// rootWorks prints what of root's usual work succeeds in a directory.
func rootWorks(args []string) error {
	dir := args[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0); err != nil {
		return err
	}
	var st unix.Stat_t
	if os.Chown(file, otherID, otherID) == nil && unix.Stat(file, &st) == nil && st.Uid == otherID && st.Gid == otherID {
		fmt.Println("chown")
	}
	if os.WriteFile(file, []byte("x"), 0) == nil { // no permission bit is set
		fmt.Println("write")
	}
	if l, err := net.Listen("tcp4", ":80"); err == nil {
		l.Close()
		fmt.Println("bind")
	}
	other := exec.Command("/proc/self/exe", "read", "/proc/self/status")
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherID, Gid: otherID, Groups: []uint32{otherID}}}
	if out, err := other.Output(); err == nil && strings.HasPrefix(statusField(string(out), "Uid"), strconv.Itoa(otherID)) && strings.Trim(statusField(string(out), "CapEff"), "0") == "" {
		fmt.Println("setuid")
	}
	return nil
}

// chownAll gives files to every ID that may mean something on the host.
func chownAll(paths []string) error {
	for _, path := range paths {
		for _, id := range []int{0, 1, otherID, 1000, 4242, 10001, 65534, 0x7800_0000, 0x7801_0000, 0x7801_0000 + 1000} {
			_ = os.Lchown(path, id, -1) // which may be refused
			_ = os.Lchown(path, -1, id)
		}
		_ = os.Lchown(path, 4242, 4242) // the owner's number on the host
	}
	return nil
}

// swapSocket changes the mode of a socket whose name has become a symlink to
// another file.
func swapSocket(args []string) error {
	socket, target := args[0], args[1]
	fd, err := unix.Open(socket, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(os.Remove(socket), os.Symlink(target, socket)); err != nil {
		return err
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o777)
}

// takeFile prints what can be done to a file, and to a directory beside it.
func takeFile(args []string) error {
	file, dir := args[0], args[1]
	for _, a := range []struct {
		name string
		try  func() error
	}{
		{"read", func() error { _, err := os.ReadFile(file); return err }},
		{"append", func() error {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString("x")
				err = errors.Join(err, f.Close())
			}
			return err
		}},
		{"truncate", func() error { return os.Truncate(file, 0) }},
		{"mark", func() error { return unix.Setxattr(file, "user.probe", []byte("x"), 0) }},
		{"chmod", func() error { return os.Chmod(file, 0o666) }},
		{"link", func() error { return os.Link(file, file+"-linked") }},
		{"rename", func() error { return errors.Join(os.Rename(file, file+"-renamed"), os.Rename(file+"-renamed", file)) }},
		{"list", func() error { _, err := os.ReadDir(dir); return err }},
		{"make in directory", func() error { return os.WriteFile(dir+"/new", nil, 0o600) }},
		{"read in directory", func() error { _, err := os.ReadFile(dir + "/file"); return err }},
		{"chown", func() error { return os.Chown(file, 0, 0) }},
		{"remove", func() error { return os.Remove(file) }},
	} {
		if err := a.try(); err == nil {
			fmt.Println(a.name)
		}
	}
	return nil
}

// evade kills its parent, by which the guest finds its processes, and leaves a
// daemon without the command's mark.
func evade(args []string) error {
	_ = unix.Setgroups(nil) // if allowed
	if err := selfCommand("daemon", args[0]).Start(); err != nil {
		return err
	}
	// On a loaded machine the parent may not yet have reported that the command
	// runs. The start would then fail without a test.
	time.Sleep(200 * time.Millisecond)
	if parent := os.Getppid(); parent != 1 {
		if err := syscall.Kill(parent, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// attackThreads sends every signal to the guest and its threads in every way,
// and prints the calls that succeed.
func attackThreads([]string) error {
	tasks, err := os.ReadDir("/proc/1/task")
	if err != nil {
		tasks = nil // hidden
	}
	ids := []int{1}
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	succeeded := map[string]bool{}
	note := func(name string, errno syscall.Errno) {
		if errno == 0 && !succeeded[name] {
			succeeded[name] = true
			fmt.Println(name)
		}
	}
	for _, id := range ids {
		for sig := uintptr(1); sig <= 64; sig++ {
			info := [16]uint64{uint64(sig), 0xffff_ffff} // si_signo, si_errno; si_code SI_QUEUE
			queued := uintptr(unsafe.Pointer(&info))
			note("kill", rawCall(unix.SYS_KILL, uintptr(id), sig))
			note("tkill", rawCall(unix.SYS_TKILL, uintptr(id), sig))
			note("tgkill", rawCall(unix.SYS_TGKILL, 1, uintptr(id), sig))
			note("rt_sigqueueinfo", rawCall(unix.SYS_RT_SIGQUEUEINFO, uintptr(id), sig, queued))
			note("rt_tgsigqueueinfo", rawCall(unix.SYS_RT_TGSIGQUEUEINFO, 1, uintptr(id), sig, queued))
		}
		limit := unix.Rlimit{}
		if unix.Prlimit(id, unix.RLIMIT_NOFILE, &limit, nil) == nil {
			note("prlimit", 0)
		}
	}
	if fd, err := unix.PidfdOpen(1, 0); err == nil {
		if unix.PidfdSendSignal(fd, unix.SIGSEGV, nil, 0) == nil {
			note("pidfd_send_signal", 0)
		}
		unix.Close(fd)
	}
	if fd, err := unix.Open("/proc/1", unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		if unix.PidfdSendSignal(fd, unix.SIGSEGV, nil, 0) == nil {
			note("pidfd_send_signal by /proc", 0)
		}
		unix.Close(fd)
	}
	for _, kind := range []string{"mnt", "net", "pid", "user", "ipc", "uts"} {
		if fd, err := unix.Open("/proc/1/ns/"+kind, unix.O_RDONLY, 0); err == nil {
			if unix.Setns(fd, 0) == nil {
				note("setns "+kind, 0)
			}
			unix.Close(fd)
		}
	}
	return nil
}
