// Package egresstest provides a network with public addresses for tests: a network
// namespace, in which a process can use any address, and a name server.
package egresstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inNamespace is set in a test's child process, which runs in its own network
// namespace, to a directory for files.
const inNamespace = "CAISSON_TEST_NETWORK_NAMESPACE"

// Addresses of the namespace. PublicAddr and PublicAddr6 represent the internet.
const (
	PublicAddr     = "93.184.216.34"
	PublicAddr6    = "2606:4700::1111"
	nameServerAddr = "127.0.0.53"
)

// CanaryAddrs are addresses that must not be reached, one for each kind of network.
var CanaryAddrs = []string{
	"127.0.0.1", "10.0.0.5", "172.16.0.5", "192.168.0.5", "169.254.169.254", "100.64.0.1", "198.18.0.1", "240.0.0.1", "168.63.129.16",
	"::1", "fc00::5", "64:ff9b::a00:5", "2002:a00:5::1",
}

// InNamespace reports whether this process is in the namespace.
func InNamespace() bool { return os.Getenv(inNamespace) != "" }

// Run runs the calling test again in a child process in the namespace, with further
// variables. Exactly this number of subtests must pass there. If this process may not
// make a namespace, the test is skipped, or fails if REQUIRE_BACKENDS is set.
func Run(t *testing.T, subtests int, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=15m")
	cmd.Env = append(append(os.Environ(), inNamespace+"="+t.TempDir()), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		skipOrFail(t, "a network namespace: %v", err)
	}
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == noNamespace {
		skipOrFail(t, "addresses in a network namespace: %s", out.String())
	}
	if err != nil || strings.Count(out.String(), "\n    --- PASS: "+t.Name()+"/") != subtests {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func skipOrFail(t *testing.T, format string, args ...any) {
	t.Helper()
	if strings.TrimSpace(os.Getenv("REQUIRE_BACKENDS")) != "" {
		t.Fatalf("REQUIRE_BACKENDS is set, and there is no "+format, args...)
	}
	t.Skipf("needs "+format, args...)
}

// noNamespace is the exit status of a child that can't set up its namespace.
const noNamespace = 77

// Main is the child's TestMain. It sets up the addresses and the name server's
// configuration of this process, runs the tests, and returns the exit status.
func Main(m *testing.M) int {
	if err := prepareNamespace(os.Getenv(inNamespace)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return noNamespace
	}
	return m.Run()
}

func prepareNamespace(dir string) error {
	// Add routes: addresses of interfaces are this machine's own and refused. IPv6
	// addresses without an interface can be listened on only with this setting.
	if err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0o600); err != nil {
		return err
	}
	commands := [][]string{{"link", "set", "lo", "up"}}
	for _, a := range append([]string{PublicAddr, PublicAddr6}, CanaryAddrs...) {
		switch {
		case a == "127.0.0.1" || a == "::1":
		case strings.Contains(a, ":"):
			commands = append(commands, []string{"-6", "route", "add", "local", a + "/128", "dev", "lo"})
		default:
			commands = append(commands, []string{"route", "add", "local", a + "/32", "dev", "lo"})
		}
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(context.Background(), "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	for _, a := range append([]string{PublicAddr6}, CanaryAddrs...) {
		if err := awaitAddr(a); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for name, text := range map[string]string{
		"resolv.conf": "nameserver " + nameServerAddr + "\nsearch evil.test\noptions timeout:1 attempts:2\n",
		"hosts":       "127.0.0.1 localhost hosts-file.test\n10.0.0.5 hosts-internal.test\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		target, err := filepath.EvalSymlinks("/etc/" + name)
		if err != nil {
			return fmt.Errorf("there is no /etc/%s: %w", name, err)
		}
		if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// awaitAddr waits until an address can be connected to. On a busy machine, the
// kernel adds the route of an IPv6 address later than the address.
func awaitAddr(addr string) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s can't be connected to: %w", addr, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
