package guest_test

import (
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
)

// medians runs the functions in turn, so that load affects each alike, and
// returns the median time of each.
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

// BenchmarkExec compares a command's round trip with the host's own fork and
// exec of the same program.
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

// BenchmarkOutput compares reading 256 MiB of a command's output with the
// host's own pipe from dd to cat: "drained" with the default live bound, "live"
// with all of it sent to the host.
func BenchmarkOutput(b *testing.B) {
	c, _ := dial(b, guesttest.Options{})
	const script = "dd if=/dev/zero bs=64k count=4096 status=none"
	flood := func(live int64) func() {
		return func() {
			r := start(b.Context(), b, c, sandbox.Command{
				Argv: []string{"sh", "-c", script}, Stdout: io.Discard,
				Output: sandbox.OutputLimits{Live: live},
			})()
			if r.Stdout.Total != 256<<20 {
				b.Fatalf("%+v", r)
			}
		}
	}
	p50 := medians(b,
		func() {
			if err := exec.Command("sh", "-c", script+" | cat >/dev/null").Run(); err != nil {
				b.Fatal(err)
			}
		},
		flood(0), flood(1<<40),
	)
	for i, name := range []string{"host", "drained", "live"} {
		b.ReportMetric(256*1.048576/p50[i].Seconds(), name+"-MB/s")
	}
	b.ReportMetric(float64(p50[0])/float64(p50[1]), "drained/host")
	b.ReportMetric(float64(p50[0])/float64(p50[2]), "live/host")
}
