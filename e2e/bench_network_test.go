package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/policy"
)

// Amounts of BenchmarkNetwork. A session records 400 connections to one host, and each
// record is synced: all connections of a run are below that.
const (
	networkBytes  = 64 << 20
	networkTrips  = 50
	networkExecs  = 60
	networkStarts = 5
)

// BenchmarkNetwork measures the network of commands from a program in the sandbox through
// all of Caisson (guest, decision, synced record, dial, metering) to a server of this
// machine. Direct connections, a plain proxy, slirp4netns and pasta take turns with it.
func BenchmarkNetwork(b *testing.B) {
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) { benchmarkNetwork(b, name) })
	}
}

func benchmarkNetwork(b *testing.B, name string) {
	s := newNetworkBench(b, name, new(atomic.Int64))
	box, memory := s.startBoth(b)
	peers := s.startPeers(b)
	times := map[string][]time.Duration{}
	measure := func(peer string, f func(what, n string) (time.Duration, error)) {
		for what, n := range map[string]int{"download": networkBytes, "connect": networkTrips} {
			took, err := f(what, strconv.Itoa(n))
			if err != nil {
				b.Fatalf("%s%s: %v", peer, what, err)
			}
			times[peer+what] = append(times[peer+what], took)
		}
	}
	inside := func(what, addr, n string) (time.Duration, error) {
		return runProbe(b.Context(), box, what, addr, n)
	}
	for b.Loop() {
		measure("", func(what, n string) (time.Duration, error) {
			return inside(what, "proxy>"+strings.Replace(s.server, "127.0.0.1", rule.HostName, 1), n)
		})
		for peer, argv := range peers {
			measure(peer, func(what, n string) (time.Duration, error) {
				address := argv[len(argv)-1]
				argv := slices.Concat(argv[:len(argv)-1], []string{s.probe, "egress-bench", what, address, n})
				out, err := exec.CommandContext(b.Context(), argv[0], argv[1:]...).Output()
				if err != nil {
					return 0, err
				}
				return parseNanoseconds(string(out))
			})
		}
		took, err := inside("name", rule.HostName, "100")
		if err != nil {
			b.Fatal(err)
		}
		times["name"] = append(times["name"], took)
	}
	s.timeExecs(b, box, times)
	b.ReportMetric(0, "ns/op")
	p50 := map[string]time.Duration{}
	for name, list := range times {
		slices.Sort(list)
		p50[name] = list[len(list)/2]
		b.ReportMetric(float64(p50[name]), name+"-p50-ns")
	}
	for peer := range peers {
		b.ReportMetric(float64(p50[peer+"connect"]-p50["direct-connect"]), peer+"connect-more-p50-ns")
	}
	b.ReportMetric(float64(p50["connect"]-p50["direct-connect"]), "connect-more-p50-ns")
	b.ReportMetric(networkBytes*8/p50["download"].Seconds()/1e9, "download-Gbit/s")
	beside := times["exec-beside"]
	b.ReportMetric(float64(beside[len(beside)*99/100]), "exec-beside-p99-ns")
	b.ReportMetric(memory["start"]-memory["start-without"], "KiB-more")
	for name, list := range s.starts {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2]), name+"-p50-ns")
	}
}

// networkBench is a machine with sessions whose commands have a network.
type networkBench struct {
	*bench
	server, probe string
	starts        map[string][]time.Duration
}

// newNetworkBench serves the measurements of the probe, counting the connections that are
// made.
func newNetworkBench(b *testing.B, name string, made *atomic.Int64) *networkBench {
	b.Helper()
	s := &networkBench{bench: benchSandbox(b, name), server: serveNetwork(b, made)}
	s.probe = filepath.Join(s.dir.Name(), "probe")
	if err := copyIfThere(sandboxtest.BuildProbe(b), s.probe); err != nil {
		b.Fatal(err)
	}
	return s
}

// caughtBackend remembers the sandbox that it made last.
type caughtBackend struct {
	sandbox.Backend
	box sandbox.Sandbox
}

func (c *caughtBackend) Create(ctx context.Context, spec sandbox.Spec) (box sandbox.Sandbox, err error) {
	box, err = c.Backend.Create(ctx, spec)
	c.box = box
	return box, err
}

// startBoth starts sessions with a network and without one, in turns. It returns a sandbox
// with a network, and the memory of one session of each kind, in KiB.
func (s *networkBench) startBoth(b *testing.B) (box sandbox.Sandbox, memory map[string]float64) {
	b.Helper()
	with := s.egressOptions(b)
	s.starts = map[string][]time.Duration{}
	ids := map[string][]string{}
	for range networkStarts {
		for kind, egress := range map[string]runner.EgressOptions{"start": with, "start-without": {}} {
			began := time.Now()
			made := s.startSession(b, egress)
			s.starts[kind] = append(s.starts[kind], time.Since(began))
			ids[kind] = append(ids[kind], made.ID(), made.Attestation().Container)
			if kind == "start" {
				box = made
			}
		}
	}
	time.Sleep(4 * time.Second) // an idle guest gives memory back after two
	memory = map[string]float64{}
	for kind, list := range ids {
		total, processes := memoryOf(b, list)
		if processes < networkStarts {
			b.Fatalf("only %d processes are found", processes)
		}
		memory[kind] = float64(total) / networkStarts / 1024
	}
	return box, memory
}

// egressOptions are those of a session that may connect to the server of this machine.
func (s *networkBench) egressOptions(b *testing.B) runner.EgressOptions {
	b.Helper()
	r, err := rule.ParseEgress("tcp://" + strings.Replace(s.server, "127.0.0.1", rule.HostName, 1))
	if err != nil {
		b.Fatal(err)
	}
	budget := limits.DefaultCommandEgressBudget()
	budget.Bytes, budget.Connections = 1<<40, 1<<20 // what runs beside commands has no end
	return runner.EgressOptions{
		Policy: &rule.Policy{Allow: []rule.Rule{r}}, Capture: true, Budget: budget,
		Private: map[string][]netip.Prefix{rule.HostName: {netip.MustParsePrefix("127.0.0.1/32")}},
	}
}

// startSession opens a session, runs a first command and returns the sandbox.
func (s *networkBench) startSession(b *testing.B, egress runner.EgressOptions) sandbox.Sandbox {
	b.Helper()
	rules, err := policy.Preset("ci")
	if err != nil {
		b.Fatal(err)
	}
	work, err := runner.OpenWorkspace(s.dir.Name(), runner.Protected{State: s.state})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { work.Close() })
	dir, err := sessiondir.Create(s.state, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dir.Close() })
	caught := &caughtBackend{Backend: s.backend}
	session, err := runner.Open(b.Context(), runner.Options{
		Dir: dir, Workspace: work,
		SandboxOptions: runner.SandboxOptions{Backend: caught, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Egress: egress},
		PolicyOptions:  runner.PolicyOptions{Policy: rules},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { session.Close() })
	if r, err := session.Exec(b.Context(), runner.UserCommand{Argv: []string{"true"}}); err != nil || !r.Status.Success() {
		b.Fatalf("true: %s, %v", r.Status, err)
	}
	return caught.box
}

// runProbe runs a measurement of the probe in a sandbox.
func runProbe(ctx context.Context, box sandbox.Sandbox, what, addr, n string) (time.Duration, error) {
	var out, errOut strings.Builder
	process, err := box.Start(ctx, sandbox.Command{
		Argv: []string{filepath.Join(sandbox.WorkspaceDir, "probe"), "egress-bench", what, addr, n}, Stdout: &out, Stderr: &errOut,
	})
	if err != nil {
		return 0, err
	}
	exit, err := process.Wait()
	if err == nil && !exit.Status.Success() {
		err = fmt.Errorf("%s: %s", exit.Status, errOut.String())
	}
	if err != nil {
		return 0, err
	}
	return parseNanoseconds(out.String())
}

func parseNanoseconds(text string) (time.Duration, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return time.Duration(n), err
}

// timeExecs adds the times of a short command to times, idle and during a download.
func (s *networkBench) timeExecs(b *testing.B, box sandbox.Sandbox, times map[string][]time.Duration) {
	b.Helper()
	add := func(name string) {
		for range networkExecs {
			began := time.Now()
			if err := runIn(b.Context(), box, nil, "sh", "-c", "true"); err != nil {
				b.Fatal(err)
			}
			times[name] = append(times[name], time.Since(began))
		}
	}
	add("exec")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := runProbe(ctx, box, "download", "proxy>"+strings.Replace(s.server, "127.0.0.1", rule.HostName, 1), strconv.Itoa(1<<40))
		ended <- err
	}()
	time.Sleep(200 * time.Millisecond)
	add("exec-beside")
	select {
	case err := <-ended:
		b.Fatalf("the download ended: %v", err)
	default:
	}
	cancel()
	<-ended
}

// startPeers starts what is measured beside Caisson. It returns by the prefix of its
// metrics what runs the probe, and last the address for it.
func (s *networkBench) startPeers(b *testing.B) map[string][]string {
	b.Helper()
	peers := map[string][]string{
		"direct-": {s.server},
		"relay-":  {startRelay(b) + ">" + s.server},
	}
	for name, argv := range map[string][]string{
		"slirp1500-":  {"slirp4netns", "--configure", "--mtu=1500", "PID", "tap0"},
		"slirp65520-": {"slirp4netns", "--configure", "--mtu=65520", "PID", "tap0"},
		"pasta-":      {"pasta", "--config-net", "--address", "10.0.2.15", "--netmask", "24", "--gateway", "10.0.2.2", "--foreground", "--quiet", "PID"},
	} {
		namespace, err := startNamespace(b, argv)
		if err != nil {
			b.Logf("the peer is missing: %s: %v", strings.Join(argv, " "), err)
			continue
		}
		peers[name] = append(namespace, strings.Replace(s.server, "127.0.0.1", "10.0.2.2", 1))
	}
	return peers
}

// startNamespace makes a network namespace that a program connects, with the namespace's
// process for the argument PID. It returns the command that runs another in it.
func startNamespace(b *testing.B, argv []string) ([]string, error) {
	if _, err := exec.LookPath(argv[0]); err != nil {
		return nil, err
	}
	start := func(c *exec.Cmd) error {
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			return err
		}
		b.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		return nil
	}
	holder := exec.Command("unshare", "--user", "--map-root-user", "--net", "sleep", "600")
	if err := start(holder); err != nil {
		return nil, err
	}
	pid := strconv.Itoa(holder.Process.Pid)
	enter := []string{"nsenter", "--user", "--net", "--preserve-credentials", "--target", pid}
	until := time.Now().Add(10 * time.Second)
	for { // until the namespaces are made
		ours, _ := os.Readlink("/proc/self/ns/net")
		theirs, _ := os.Readlink("/proc/" + pid + "/ns/net")
		if theirs != "" && ours != theirs {
			break
		}
		if time.Now().After(until) {
			return nil, errors.New("no network namespace was made")
		}
		time.Sleep(20 * time.Millisecond)
	}
	argv = slices.Clone(argv)
	argv[slices.Index(argv, "PID")] = pid
	if argv[0] == "pasta" && os.Getuid() == 0 { // or it becomes a user that may not enter
		argv = slices.Insert(argv, 1, "--runas", "0:0")
	}
	if err := start(exec.Command(argv[0], argv[1:]...)); err != nil {
		return nil, err
	}
	for time.Now().Before(until) {
		out, _ := exec.Command(enter[0], append(slices.Clone(enter[1:]), "cat", "/proc/net/route")...).Output()
		if strings.Contains(string(out), "\t00000000\t") {
			return enter, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, errors.New("no route was made in 10 s")
}

// serveNetwork serves what the probe's measurements need, and returns its address.
func serveNetwork(b *testing.B, made *atomic.Int64) string {
	return serveConns(b, func(c *net.TCPConn) {
		made.Add(1)
		buf := make([]byte, 256<<10)
		if _, err := io.ReadFull(c, buf[:1]); err != nil {
			return
		}
		if buf[0] != 'd' {
			_, _ = c.Write(buf[:1])
			_, _ = c.Read(buf) // until the program has closed it
			return
		}
		for err := error(nil); err == nil; {
			_, err = c.Write(buf)
		}
	})
}

// startRelay starts a proxy that decides and records nothing, and returns its address.
func startRelay(b *testing.B) string {
	return serveConns(b, func(c *net.TCPConn) {
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", r.Host)
		if err != nil {
			return
		}
		defer up.Close()
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(up, br)
			_ = up.(*net.TCPConn).CloseWrite()
		}()
		// Without the type, io.Copy would splice, which no connection of a sandbox can.
		_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{up}, make([]byte, 256<<10))
	})
}

// serveConns serves connections to an address of this machine until the benchmark ends.
func serveConns(b *testing.B, serve func(c *net.TCPConn)) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}
