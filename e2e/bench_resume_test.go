package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// BenchmarkResume is `caisson run --resume` of a session that was killed behind its
// 10,000th record, in a round of a turn without a summary, so that the whole conversation
// is kept. Each round is a call whose result has 4 kB. It measures the program from its
// start to its end after one answer of the model, and the most memory that is resident
// meanwhile, pages of the program's file included.
func BenchmarkResume(b *testing.B) {
	const records = 10_000
	m := newMachine(b)
	var rounds [][]scriptCall
	for i := range records / 5 {
		name := fmt.Sprintf("f%04d", i)
		text := strings.Repeat(fmt.Sprintf("line of file %04d\n", i), 220)
		m.write(b, name, text)
		rounds = append(rounds, []scriptCall{call("read_file", map[string]any{"path": name})})
	}
	limit := []string{"--max-rounds", fmt.Sprint(len(rounds) + 10), "--backend", anyBackend(b)}
	m.start(b, taskArgs(m, append(limit, m.playing(b, rounds...)...)...)...).wait(b, 10*time.Minute).want(b, 0)

	lines := bytes.SplitAfter(traceOf(b, m), []byte("\n"))
	if len(lines) < records {
		b.Fatalf("the session has %d records", len(lines))
	}
	trace := bytes.Join(lines[:records], nil)
	paths, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", record.TraceFile))
	if err != nil || len(paths) != 1 {
		b.Fatal(paths, err)
	}
	script := filepath.Join(m.home, "answer.yaml")
	writeFile(b, script, "version: 1\nname: answer\nturns: [{text: Done.}]\n", 0o644)
	args := append([]string{"run", "--workspace", m.workspace, "--policy", "ci", "--json", "--resume", "last", "--model", "replay/" + script}, limit...)
	var took []time.Duration
	var most int64
	for b.Loop() {
		writeFile(b, paths[0], trace, 0o600)
		start := time.Now()
		r := m.start(b, args...)
		peak := watchMemory(r.process.Process.Pid, "VmHWM")
		<-r.ended
		took = append(took, time.Since(start))
		r.wait(b, time.Minute).want(b, 0)
		most = max(most, <-peak)
		if now := traceOf(b, m); !bytes.HasPrefix(now, trace) || !bytes.Contains(now[len(trace):], []byte(`"session.resumed"`)) {
			b.Fatal("the session was not resumed")
		}
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	b.ReportMetric(float64(most)/1024, "KiB-peak")
	b.ReportMetric(float64(len(trace))/1e6, "MB-trace")
}
