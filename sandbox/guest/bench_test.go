//go:build linux

package guest_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
)

// median runs the functions in turn, so that a loaded machine is loaded for
// each, and gives the median time of each.
func medians(b *testing.B, run ...func()) []time.Duration {
	b.Helper()
	times := make([][]time.Duration, len(run))
	for b.Loop() {
		for i, f := range run {
			began := time.Now()
			f()
			times[i] = append(times[i], time.Since(began))
		}
	}
	out := make([]time.Duration, len(run))
	for i, list := range times {
		slices.Sort(list)
		out[i] = list[len(list)/2]
	}
	return out
}

// BenchmarkExec compares a command's round trip in the guest with the host's
// own fork and exec of the same program.
func BenchmarkExec(b *testing.B) {
	c, _ := dial(b, guesttest.Options{})
	p50 := medians(b,
		func() {
			if err := exec.Command("/bin/sh", "-c", "true").Run(); err != nil {
				b.Fatal(err)
			}
		},
		func() { start(b.Context(), b, c, sandbox.Command{Argv: []string{"/bin/sh", "-c", "true"}})() },
		func() {
			if err := c.Ping(b.Context()); err != nil {
				b.Fatal(err)
			}
		},
	)
	b.ReportMetric(float64(p50[0].Microseconds()), "host-µs")
	b.ReportMetric(float64(p50[1].Microseconds()), "guest-µs")
	b.ReportMetric(float64(p50[1])/float64(p50[0]), "guest/host")
	b.ReportMetric(float64(p50[2].Microseconds()), "ping-µs")
}
