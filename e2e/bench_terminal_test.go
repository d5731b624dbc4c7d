package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkTerminal measures the time from a key to its echo by a program on a terminal in a
// sandbox, beside docker exec -it in the container of the backend docker. They take turns, one
// key every 5 ms.
func BenchmarkTerminal(b *testing.B) {
	const keys = 100 // of each in a round
	echo := []string{"sh", "-c", "stty raw -echo; echo re''ady; exec cat"}
	sides := map[string]*conversation{}
	for _, name := range backendNames {
		if err := probeBackend(b, name); err != nil {
			b.Logf("%s is missing: %v", name, err)
			continue
		}
		m := newMachine(b)
		sides[name] = m.converse(b, append([]string{"exec", "-it", "--workspace", m.workspace, "--backend", name, "--"}, echo...)...)
		sides[name].waitFor(b, "ready\r\n")
		if name == "docker" {
			container, err := exec.CommandContext(b.Context(), "docker", "ps", "--latest", "--quiet").Output()
			if err != nil {
				b.Fatal(err)
			}
			sides["engine"] = converseWith(b, exec.CommandContext(b.Context(), "docker", append([]string{"exec", "-it", strings.TrimSpace(string(container))}, echo...)...))
			sides["engine"].waitFor(b, "ready\r\n")
		}
	}
	times := map[string][]time.Duration{}
	for b.Loop() {
		for range keys {
			for name, c := range sides {
				time.Sleep(5 * time.Millisecond)
				pressed := time.Now()
				c.send(b, "x")
				c.waitFor(b, "x")
				times[name] = append(times[name], time.Since(pressed))
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, list := range times {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2]), name+"-p50-ns")
		b.ReportMetric(float64(list[len(list)*99/100]), name+"-p99-ns")
	}
	for _, c := range sides {
		_ = c.program.Process.Kill()
		_ = c.program.Wait()
		c.terminal.Close()
	}
}
