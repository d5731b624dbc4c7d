package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/sandbox"
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

// BenchmarkFresh is `caisson exec -- true`, from the start of the program to its end,
// beside the start of a sandbox of the same backend by this process, to the end of a first
// command. Its removal, which the program waits for, is a third side.
func BenchmarkFresh(b *testing.B) {
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			s, m := benchSandbox(b, name), newMachine(b)
			program := filepath.Join(binaries(b), "caisson")
			var box sandbox.Sandbox
			compare(b,
				side{op: func() error {
					c := exec.CommandContext(b.Context(), program, "exec", "--workspace", m.workspace, "--backend", name, "--", "true")
					c.Env, c.Dir = m.env, m.home
					if out, err := c.CombinedOutput(); err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				}},
				side{name: "start-", op: func() (err error) {
					session := "ses_" + ulid.Make().String()
					dir := filepath.Join(s.state, "sessions", session)
					if err := os.MkdirAll(dir, 0o700); err != nil {
						return err
					}
					if box, err = s.backend.Create(b.Context(), s.spec(session, dir)); err != nil {
						return err
					}
					return runIn(b.Context(), box, nil, "true")
				}},
				side{name: "removal-", op: func() error { return box.Destroy(b.Context()) }})
		})
	}
}
