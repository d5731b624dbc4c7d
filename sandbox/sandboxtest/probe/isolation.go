package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

func statusField(status, name string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func printFacts([]string) error {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	status := string(raw)
	f := probing.Facts{
		UID: os.Getuid(), GID: os.Getgid(), EUID: os.Geteuid(), EGID: os.Getegid(),
		CapInh: statusField(status, "CapInh"), CapPrm: statusField(status, "CapPrm"),
		CapEff: statusField(status, "CapEff"), CapBnd: statusField(status, "CapBnd"),
		CapAmb:     statusField(status, "CapAmb"),
		NoNewPrivs: statusField(status, "NoNewPrivs"), Seccomp: statusField(status, "Seccomp"),
	}
	if f.NoNewPrivs == "" { // gVisor's status has no such line
		if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil {
			f.NoNewPrivs = strconv.Itoa(v)
		}
	}
	if f.CapAmb == "" { // nor this one: ask for each capability
		f.CapAmb = ambientCapabilities()
	}
	f.Groups = foreignGroups()
	if f.Interfaces, err = networkInterfaces(); err != nil {
		return err
	}
	f.FDs = openDescriptors()
	f.Hostname, _ = os.Hostname()
	f.Localhost, _ = net.LookupHost("localhost")
	f.Own, _ = net.LookupHost(f.Hostname)
	return json.NewEncoder(os.Stdout).Encode(f)
}

func ambientCapabilities() string {
	var set uint64
	for c := range 41 {
		if v, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, uintptr(c), 0, 0); err == nil && v == 1 {
			set |= 1 << c
		}
	}
	return fmt.Sprintf("%016x", set)
}

// foreignGroups counts supplementary groups except the one that marks a
// command's processes and owns nothing. That is a high number or, in a user
// namespace without such numbers, one from guest.DefaultGIDBase.
func foreignGroups() int {
	const first, count = 30_000, 20_000
	groups, _ := os.Getgroups()
	all, _ := os.ReadFile("/proc/self/gid_map")
	isNamespace := len(strings.Fields(string(all))) != 3 || strings.Fields(string(all))[1] != "0"
	groups = slices.DeleteFunc(groups, func(g int) bool {
		return g >= 1<<20 || g == os.Getgid() || isNamespace && g >= first && g < first+count
	})
	return len(groups)
}

func networkInterfaces() ([]string, error) {
	all, err := net.Interfaces()
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 || i.Name != "lo" {
			names = append(names, i.Name)
		}
	}
	return names, err
}

// openDescriptors lists the descriptors that were open when this program
// started. Go's runtime opens only anonymous ones and, since Go 1.25, the CPU
// limits that it follows.
func openDescriptors() []int {
	var fds []int
	for fd := range 1024 {
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/proc/") && !strings.HasPrefix(target, "/sys/fs/cgroup/") {
			fds = append(fds, fd)
		}
	}
	return fds
}

func attackGuest([]string) error {
	if err := syscall.Kill(1, syscall.SIGKILL); err == nil {
		fmt.Println("SIGKILL")
	}
	if err := syscall.Kill(1, syscall.SIGSTOP); err == nil {
		fmt.Println("SIGSTOP")
	}
	for _, f := range []string{"mem", "environ", "maps", "fd/0", "fd/1", "root", "cwd", "exe"} {
		if file, err := os.OpenFile("/proc/1/"+f, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			if _, err := file.Read(make([]byte, 1)); err == nil || f == "root" || f == "cwd" || f == "fd/0" || f == "fd/1" {
				fmt.Println("/proc/1/" + f)
			}
			file.Close()
		}
	}
	for _, f := range []string{"/.caisson/guest", "/proc/1/exe"} {
		if file, err := os.OpenFile(f, os.O_WRONLY, 0); err == nil {
			fmt.Println("write", f)
			file.Close()
		}
	}
	return nil
}

func dialAddresses(addrs []string) error {
	for _, a := range addrs {
		if c, err := net.DialTimeout("tcp", a, 2*time.Second); err == nil {
			fmt.Println(a)
			c.Close()
		}
	}
	return nil
}

func grepFiles(args []string) error {
	for _, path := range args[1:] {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), args[0]) {
			fmt.Println(path)
		}
	}
	return nil
}

func printReadable(paths []string) error {
	for _, path := range paths {
		if f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			fmt.Println(path)
			f.Close()
		}
	}
	return nil
}

// printWritable prints directories in which a file can be made, and files that
// can be opened for writing.
func printWritable(paths []string) error {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		target := path
		if info.IsDir() {
			target = filepath.Join(path, "probe-was-here")
		}
		f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			continue
		}
		f.Close()
		if info.IsDir() {
			os.Remove(target)
		}
		fmt.Println(path)
	}
	return nil
}

func fillFile(args []string) error {
	limit := int64(number(args[1]))
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer os.Remove(args[0])
	defer f.Close()
	var wrote int64
	buf := make([]byte, 64<<10)
	for wrote < limit {
		n, err := f.Write(buf)
		wrote += int64(n)
		if err != nil {
			fmt.Println(wrote, errnoName(err))
			return nil
		}
	}
	fmt.Println(wrote, "none")
	return nil
}
