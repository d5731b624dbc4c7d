package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
)

// host is a network namespace that is joined to others by a bridge.
type host struct {
	t    *testing.T
	hub  *host // that has the bridge
	name string
	addr string
	pid  string // of the process that holds it
}

// newNetwork makes a network namespace with a bridge, which reaches nothing else. All of it
// ends with the test.
func newNetwork(t *testing.T) *host {
	t.Helper()
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to make network namespaces")
	}
	h := holdNamespace(t)
	h.ip("link", "add", "hub", "type", "bridge")
	h.ip("link", "set", "hub", "up")
	return h
}

// holdNamespace makes a network namespace.
func holdNamespace(t *testing.T) *host {
	t.Helper()
	holder := exec.Command("sleep", "3600")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := holder.Start(); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	return &host{t: t, pid: fmt.Sprint(holder.Process.Pid)}
}

// join makes a host on the network, the number-th.
func (h *host) join(number int) *host {
	h.t.Helper()
	out := holdNamespace(h.t)
	out.hub, out.name, out.addr = h, fmt.Sprint("host", number), fmt.Sprint("10.77.0.", number)
	h.ip("link", "add", out.name, "type", "veth", "peer", "name", "eth0", "netns", out.pid)
	h.ip("link", "set", out.name, "master", "hub", "up")
	out.ip("addr", "add", out.addr+"/24", "dev", "eth0")
	out.ip("link", "set", "eth0", "up")
	out.ip("link", "set", "lo", "up")
	return out
}

// ip runs ip in the namespace.
func (h *host) ip(args ...string) {
	h.t.Helper()
	argv := h.enter("ip", args...)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		h.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// setLink connects the host to the others or cuts it off.
func (h *host) setLink(state string) {
	h.t.Helper()
	h.hub.ip("link", "set", h.name, state)
}

// enter returns a command that runs a program in the namespace, as the process that is started.
func (h *host) enter(program string, args ...string) []string {
	return append([]string{"nsenter", "--net=/proc/" + h.pid + "/ns/net", program}, args...)
}

// start starts caisson of a machine in the namespace.
func (h *host) start(m *machine, args ...string) *running {
	h.t.Helper()
	inside, argv := *m, h.enter(filepath.Join(binaries(h.t), "caisson"), args...)
	inside.program = argv[0]
	return inside.start(h.t, argv[1:]...)
}

// Dial connects to an address from the namespace: sockets stay in the one that they are
// made in.
func (h *host) Dial(network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine
		f, err := os.Open("/proc/" + h.pid + "/ns/net")
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		conn, err := (&net.Dialer{Timeout: 2 * time.Second}).Dial(network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// natsConfig is the path of a configuration file for a process that is a NATS server.
const natsConfig = "CAISSON_E2E_NATS"

// runNATS is a NATS server until it is killed.
func runNATS(config string) error {
	o, err := natsserver.ProcessConfigFile(config)
	if err != nil {
		return err
	}
	s, err := natsserver.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return nil
}

// startNATS starts a NATS server of a cluster on each host, with JetStream, and returns the
// processes by the names of the servers, and the URLs.
func startNATS(t *testing.T, hosts ...*host) (servers map[string]*exec.Cmd, urls string) {
	t.Helper()
	var clients, routes []string
	for _, h := range hosts {
		clients, routes = append(clients, "nats://"+h.addr+":4222"), append(routes, "nats://"+h.addr+":6222")
	}
	servers = map[string]*exec.Cmd{}
	for _, h := range hosts {
		dir := t.TempDir()
		config := filepath.Join(dir, "nats.conf")
		text := fmt.Sprintf("server_name: %s\nlisten: \"%s:4222\"\nlog_file: %q\njetstream { store_dir: %q, sync_interval: always }\ncluster { name: test, listen: \"%s:6222\", routes: [%s] }\n",
			h.name, h.addr, filepath.Join(dir, "log"), dir, h.addr, strings.Join(routes, ", "))
		writeFile(t, config, text, 0o600)
		argv := h.enter(os.Args[0])
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), natsConfig+"="+config)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if text, err := os.ReadFile(filepath.Join(dir, "log")); err == nil && t.Failed() {
				t.Logf("%s:\n%s", h.name, tail(string(text), 10))
			}
		})
		servers[h.name] = cmd
	}
	return servers, strings.Join(clients, ",")
}

// startQueue starts a NATS server in this process.
func startQueue(t *testing.T, o *natsserver.Options) *natsserver.Server {
	t.Helper()
	o.Host, o.Port, o.JetStream, o.StoreDir, o.SyncAlways, o.NoSigs, o.NoLog = "127.0.0.1", natsserver.RANDOM_PORT, true, t.TempDir(), true, true, true
	s, err := natsserver.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}
