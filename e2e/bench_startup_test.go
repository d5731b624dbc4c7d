//go:build linux

package e2e

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkStartup measures `caisson version`, `caisson --help`, and how much
// later than `version` ends `caisson run` sends the first request to its model.
func BenchmarkStartup(b *testing.B) {
	m := newMachine(b)
	asked := make(chan time.Time, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- time.Now()
		http.Error(w, `{"error":{"message":"no such key"}}`, http.StatusUnauthorized)
	}))
	defer server.Close()
	m.env = append(m.env, "OPENAI_API_KEY=test-key-of-the-benchmark", "OPENAI_BASE_URL="+server.URL+"/v1")
	task := taskArgs(m, "--model", "openai/gpt-5", "answer")

	program := filepath.Join(binaries(b), "caisson")
	timeProgram := func(arg string) time.Duration {
		start := time.Now()
		if err := exec.CommandContext(b.Context(), program, arg).Run(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	var version, help, request []time.Duration
	for b.Loop() {
		version = append(version, timeProgram("version"))
		help = append(help, timeProgram("--help"))
		start := time.Now()
		run := m.start(b, task...)
		select {
		case at := <-asked:
			request = append(request, at.Sub(start))
		case <-run.ended:
			b.Fatalf("caisson asked no model: %s", run.stderr)
		}
		run.wait(b, time.Minute)
	}
	median := func(took []time.Duration) float64 {
		slices.Sort(took)
		return float64(took[len(took)/2])
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(version), "version-p50-ns")
	b.ReportMetric(median(help), "help-p50-ns")
	b.ReportMetric(median(request)-median(version), "first-request-p50-ns")
}
