package e2e

import (
	"context"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Amounts of BenchmarkFlood: connections that are held, connections at once that are made
// as fast as possible, and how long commands are timed beside them in each round.
const (
	floodHeld  = 1000
	floodChurn = 100
	floodTime  = time.Second
)

// BenchmarkFlood measures short commands in a sandbox beside connections of another command:
// 1,000 that are slow, stalled, half-closed and reset, and 100 at once that end as soon as
// they have a byte. The control is the same program on the host with a plain proxy. Beside
// each the same short command also runs on the host. All take turns.
func BenchmarkFlood(b *testing.B) {
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) { benchmarkFlood(b, name) })
	}
}

func benchmarkFlood(b *testing.B, name string) {
	var made atomic.Int64
	s := newNetworkBench(b, name, &made)
	box := s.startSession(b, s.egressOptions(b))
	relay := startRelay(b) + ">" + s.server
	inside := "proxy>" + strings.Replace(s.server, "127.0.0.1", rule.HostName, 1)
	times := map[string][]time.Duration{}
	rates := map[string][]float64{}
	measure := func(name string, run func(ctx context.Context) error) {
		b.Helper()
		for until := time.Now().Add(floodTime); time.Now().Before(until); {
			began := time.Now()
			if err := run(b.Context()); err != nil {
				b.Fatal(err)
			}
			times[name] = append(times[name], time.Since(began))
		}
	}
	inBox := func(ctx context.Context) error { return runIn(ctx, box, nil, "sh", "-c", "true") }
	onHost := func(ctx context.Context) error { return exec.CommandContext(ctx, "sh", "-c", "true").Run() }
	// beside measures while a program of the sandbox or the host holds connections.
	beside := func(name, what string, n int, start func(ctx context.Context, what, n string) (wait func() error)) {
		b.Helper()
		ctx, cancel := context.WithCancel(b.Context())
		wait := start(ctx, what, strconv.Itoa(n))
		time.Sleep(time.Second)
		before, began := made.Load(), time.Now()
		measure(name, inBox)
		rates[name] = append(rates[name], float64(made.Load()-before)/time.Since(began).Seconds())
		measure("host-"+name, onHost)
		cancel()
		_ = wait()
	}
	sandboxed := func(ctx context.Context, what, n string) func() error {
		p, err := box.Start(ctx, sandbox.Command{
			Argv: []string{sandbox.WorkspaceDir + "/probe", "egress-bench", what, inside, n}, Stdout: io.Discard, Grace: time.Millisecond,
		})
		if err != nil {
			b.Fatal(err)
		}
		return func() error { _, err := p.Wait(); return err }
	}
	hosted := func(ctx context.Context, what, n string) func() error {
		c := exec.CommandContext(ctx, s.probe, "egress-bench", what, relay, n)
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		return c.Wait
	}
	for b.Loop() {
		measure("idle", inBox)
		measure("host-idle", onHost)
		beside("held", "hold", floodHeld, sandboxed)
		beside("churn", "churn", floodChurn, sandboxed)
		beside("relay-churn", "churn", floodChurn, hosted)
	}
	b.ReportMetric(0, "ns/op")
	for name, list := range times {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2]), name+"-p50-ns")
		b.ReportMetric(float64(list[len(list)*99/100]), name+"-p99-ns")
	}
	for name, list := range rates {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name+"-conns/s")
	}
}
