package sandboxtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

const (
	benchBytes = 256 << 20
	benchTrips = 200
	benchExecs = 100
)

// benchHandler sends zeros, reads to the end, or echoes one byte, depending on
// a connection's first byte.
type benchHandler struct{}

type benchConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func (benchHandler) ServeEgress(_ context.Context, c sandbox.EgressConn) { serveBench(c) }

func (benchHandler) LookupName(_ context.Context, name string) (netip.Addr, bool) {
	return sandbox.NameAddr(1), name == "example.com"
}

func serveBench(c benchConn) {
	buf := make([]byte, 256<<10)
	if _, err := io.ReadFull(c, buf[:1]); err != nil {
		return
	}
	switch buf[0] {
	case 'd':
		for err := error(nil); err == nil; {
			_, err = c.Write(buf)
		}
	case 'u':
		_, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, buf)
		_ = c.CloseWrite()
	default:
		_, _ = c.Write(buf[:1])
		_ = c.CloseWrite()
		_, _ = c.Read(buf) // until the program closes it
	}
}

// BenchmarkEgress measures what programs' connections cost: each row beside the
// same program on the host with a listener there, in one loop.
func BenchmarkEgress(b *testing.B, target Target) {
	target.Probe = BuildProbe(b)
	e := newEnv(target, b.TempDir())
	e.egress = &sandbox.EgressPlan{Names: true, Capture: []int{80, 443}}
	without := newEnv(target, b.TempDir())
	for _, env := range []*env{without, e} {
		if err := env.start(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := env.close(context.WithoutCancel(b.Context())); err != nil {
				b.Error(err)
			}
		}()
	}
	if err := serveEgress(e, benchHandler{}); err != nil {
		b.Fatal(err)
	}
	idle := measureIdle(b, map[string]*env{"idle-KiB": e, "idle-without-KiB": without})
	host := listenBench(b)
	times := map[string][]time.Duration{}
	add := func(name string, took time.Duration, err error) {
		b.Helper()
		if err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		times[name] = append(times[name], took)
	}
	for b.Loop() {
		for what, n := range map[string]int{"down": benchBytes, "up": benchBytes, "connect": benchTrips} {
			took, err := runBench(b.Context(), e, what, ownProxy, n)
			add(what, took, err)
			took, err = hostBench(b.Context(), target.Probe, what, host, n)
			add("host-"+what, took, err)
		}
		took, err := runBench(b.Context(), e, "name", "example.com", benchTrips)
		add("name", took, err)
		runs, err := timeExecs(b.Context(), e)
		times["exec"] = append(times["exec"], runs...)
		if err == nil {
			runs, err = timeExecsBeside(b.Context(), e)
			times["exec-beside"] = append(times["exec-beside"], runs...)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	p50 := map[string]time.Duration{}
	for name, list := range times {
		slices.Sort(list)
		p50[name] = list[len(list)/2]
	}
	b.ReportMetric(0, "ns/op")
	for _, what := range []string{"down", "up"} {
		b.ReportMetric(benchBytes*8/p50[what].Seconds()/1e9, what+"-Gbit/s")
		b.ReportMetric(float64(p50["host-"+what])/float64(p50[what]), what+"/host")
	}
	b.ReportMetric(float64(p50["connect"]-p50["host-connect"])/1e6, "connect-more-ms")
	b.ReportMetric(float64(p50["name"])/1e6, "name-ms")
	b.ReportMetric(float64(p50["exec"])/1e6, "exec-ms")
	b.ReportMetric(float64(p50["exec-beside"])/float64(p50["exec"]), "exec-beside/idle")
	b.ReportMetric(float64(times["exec-beside"][len(times["exec-beside"])*99/100])/1e6, "exec-beside-p99-ms")
	for name, bytes := range idle {
		b.ReportMetric(float64(bytes)/(1<<10), name)
	}
	reportStalled(b, e)
}

func runBench(ctx context.Context, e *env, what, addr string, n int) (time.Duration, error) {
	out, err := e.expectOutput(ctx, "egress-bench", what, addr, strconv.Itoa(n))
	if err != nil {
		return 0, err
	}
	return parseNanoseconds(out)
}

func parseNanoseconds(text string) (time.Duration, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return time.Duration(n), err
}

func listenBench(b *testing.B) string {
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
				serveBench(c.(*net.TCPConn))
			})
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

func hostBench(ctx context.Context, probe, what, addr string, n int) (time.Duration, error) {
	out, err := exec.CommandContext(ctx, probe, "egress-bench", what, addr, strconv.Itoa(n)).Output()
	if err != nil {
		return 0, err
	}
	return parseNanoseconds(string(out))
}

func timeExecs(ctx context.Context, e *env) ([]time.Duration, error) {
	var times []time.Duration
	for range benchExecs {
		began := time.Now()
		if _, err := sandbox.Run(ctx, e.sb, sandbox.Command{Argv: []string{"/bin/sh", "-c", "true"}}); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
	return times, nil
}

func timeExecsBeside(ctx context.Context, e *env) ([]time.Duration, error) {
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := e.sb.Start(runCtx, sandbox.Command{Argv: probeArgv("egress-bench", "down", ownProxy, strconv.Itoa(1<<40)), Grace: time.Millisecond})
	if err != nil {
		return nil, err
	}
	time.Sleep(100 * time.Millisecond)
	times, err := timeExecs(ctx, e)
	cancel()
	_, waitErr := p.Wait()
	return times, errors.Join(err, waitErr)
}

// measureIdle returns the anonymous memory of each container's first process
// after some commands.
func measureIdle(b *testing.B, envs map[string]*env) map[string]int64 {
	b.Helper()
	idle := map[string]int64{}
	for name, e := range envs {
		if _, err := timeExecs(b.Context(), e); err != nil {
			b.Fatal(err)
		}
		time.Sleep(5 * time.Second) // the guest returns unused memory
		var err error
		if idle[name], err = anonymousMemory(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
	return idle
}

// reportStalled reports how much it grows with the maximum of connections, all
// unread.
func reportStalled(b *testing.B, e *env) {
	b.Helper()
	time.Sleep(5 * time.Second)
	idle, err := anonymousMemory(b.Context(), e)
	if err != nil {
		b.Fatal(err)
	}
	before := socketMemory()
	runCtx, cancel := context.WithCancel(b.Context())
	defer cancel()
	p, _, err := startReady(runCtx, b.Context(), e, sandbox.Command{Argv: probeArgv("egress-bench", "stall", ownProxy, strconv.Itoa(sandbox.MaxEgressConns)), Grace: time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	stalled, err := anonymousMemory(b.Context(), e)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(stalled-idle)/(1<<20), "stalled-MiB")
	b.ReportMetric(float64(socketMemory()-before)/(1<<20), "stalled-sockets-MiB")
	cancel()
	_, _ = p.Wait()
}

func anonymousMemory(ctx context.Context, e *env) (int64, error) {
	pid, err := e.target.HostProcess(ctx, e.sb)
	if err != nil {
		return 0, err
	}
	return fieldOf(fmt.Sprintf("/proc/%d/status", pid), "RssAnon:", 1024)
}

func socketMemory() int64 {
	data, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		return 0
	}
	var pages int64
	if _, after, ok := strings.Cut(string(data), " mem "); ok {
		_, _ = fmt.Sscan(after, &pages)
	}
	return pages * int64(os.Getpagesize())
}

func fieldOf(path, word string, unit int64) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), word); ok {
			var n int64
			_, err := fmt.Sscan(rest, &n)
			return n * unit, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, word)
}
