package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkTerminal measures the time from a key to its echo by a program on a terminal in a
// sandbox, beside docker exec -it. They take turns, one key every 5 ms.
func BenchmarkTerminal(b *testing.B) {
	const keys = 100 // of each in a round
	echo := []string{"sh", "-c", "stty raw -echo; printf ready; exec cat"}
	sides := map[string]*conversation{}
	for _, name := range backendNames {
		if err := probeBackend(b, name); err != nil {
			b.Logf("%s is missing: %v", name, err)
			continue
		}
		m := newMachine(b)
		sides[name] = m.converse(b, append([]string{"exec", "-it", "--workspace", m.workspace, "--backend", name, "--"}, echo...)...)
		sides[name].waitFor(b, "ready")
	}
	if sides["docker"] != nil {
		image := engineImage(b, userland(b, "stty"))
		container, err := exec.CommandContext(b.Context(), "docker", "run", "--detach", "--interactive", "--rm", "--network=none", image, "cat").Output()
		if err != nil {
			b.Fatal(err)
		}
		id := strings.TrimSpace(string(container))
		b.Cleanup(func() { _ = exec.Command("docker", "rm", "--force", id).Run() })
		sides["engine"] = converseWith(b, exec.CommandContext(b.Context(), "docker", append([]string{"exec", "-it", id}, echo...)...))
		sides["engine"].waitFor(b, "ready")
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
