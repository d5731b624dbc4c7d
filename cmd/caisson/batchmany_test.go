package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/report"
)

// sampleMemory appends a line to a file each time that a file of results has this many
// more lines: their number, the bytes of the heap after a collection, and the resident
// ones. It never returns.
func sampleMemory(results, to string, every int) {
	lines, next := 0, every
	var f *os.File
	buffer := make([]byte, 1<<20)
	for ; ; time.Sleep(20 * time.Millisecond) {
		if f == nil {
			f, _ = os.Open(results)
		}
		if f == nil {
			continue
		}
		n, err := f.Read(buffer)
		if err != nil && !errors.Is(err, io.EOF) {
			panic(err)
		}
		lines += bytes.Count(buffer[:n], []byte{'\n'})
		if lines < next {
			continue
		}
		next += every
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(out, lines, m.HeapAlloc, residentBytes(), runtime.NumGoroutine())
		_ = out.Close() // the test fails without the line
	}
}

func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		panic(err)
	}
	return pages * int64(os.Getpagesize())
}

// manyBatch is a batch of the program with backends that start no container.
type manyBatch struct {
	t        *testing.T
	top, out string
	env      []string
}

// newManyBatch makes tasks for two models that do nothing. Every third one fails.
func newManyBatch(t *testing.T, tasks int) (b *manyBatch, args []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: the fake mounts overlays")
	}
	b = &manyBatch{t: t, top: t.TempDir()}
	b.out = filepath.Join(b.top, "out")
	var lines strings.Builder
	for i := range tasks {
		fmt.Fprintf(&lines, `{"id":"task-%05d","prompt":"Do nothing.","verify":%q,"limits":{"memory_mb":64}}`+"\n", i, map[bool]string{true: "false", false: "true"}[i%3 == 0])
	}
	files := map[string]string{"tasks.jsonl": lines.String(), "bin/caisson": "", "bin/caisson-guest": "", "bin/runsc": "", "home/.keep": ""}
	for _, model := range []string{"a", "b"} {
		files[model+".yaml"] = "version: 1\nname: " + model + "\nturns:\n  - text: Done.\n"
		args = append(args, "--model", "replay/"+filepath.Join(b.top, model+".yaml"))
	}
	for name, text := range files {
		path := filepath.Join(b.top, name)
		writeFile(t, path, text, 0o755)
	}
	b.env = []string{"PATH=" + os.Getenv("PATH"), "FAKE_PATH=/usr/bin:/bin", "HOME=" + filepath.Join(b.top, "home"), "FAKE_BIN=" + filepath.Join(b.top, "bin"), "FAKE_DOCKER=no engine answers", "DOCKER_HOST=unix:///no/such.sock", "FAKE_UNMOUNTS=1", "CI=1"}
	return b, append([]string{"batch", "--backend", "gvisor", "--out", b.out, "--parallel", "4"}, append(args, filepath.Join(b.top, "tasks.jsonl"))...)
}

func (b *manyBatch) run(status int, args ...string) (string, time.Duration) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), "caisson", args...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = b.env, &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != status {
		b.t.Fatalf("%v: %v, want status %d\n%.4000s%.4000s", args[:2], err, status, stdout.String(), stderr.String())
	}
	return stdout.String(), took
}

// TestManyTrials runs a batch on trivial sandboxes: each trial has one result, and the
// commands that show results can handle all. With MANY_TRIALS=10000, memory must only
// grow by what is kept of each trial. CAISSON_SAMPLE_REPORTS names a directory for the
// report.
func TestManyTrials(t *testing.T) {
	n := 40
	if text := os.Getenv("MANY_TRIALS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 2 {
			t.Fatalf("MANY_TRIALS=%s", text)
		}
	}
	n -= n % 2
	b, args := newManyBatch(t, n/2)
	samples := filepath.Join(b.top, "memory")
	env := b.env
	b.env = append(b.env, "FAKE_MEMORY="+samples, "FAKE_MEMORY_OF="+filepath.Join(b.out, batch.ResultsFile), "FAKE_MEMORY_EVERY="+strconv.Itoa(max(1, n/20)))
	_, took := b.run(60, args...)
	b.env = env
	t.Logf("%d trials in %s: %.1f per second", n, took.Round(time.Second), float64(n)/took.Seconds())
	results, err := batch.ReadResults(b.out)
	seen := map[batch.Key]bool{}
	for _, r := range results {
		seen[r.Key] = true
		number, err := strconv.Atoi(strings.TrimPrefix(r.Task, "task-"))
		if err != nil || (r.Outcome == batch.Passed) != (number%3 != 0) || len(r.Faults) > 0 {
			t.Fatalf("%+v", r)
		}
	}
	if err != nil || len(results) != n || len(seen) != n {
		t.Fatalf("%d results of %d trials: %v", len(results), len(seen), err)
	}
	if n >= 5000 {
		b.checkMemory(samples, n)
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"the same command again", args},
		{"show", []string{"batch", "show", b.out}},
		{"ls", []string{"batch", "ls", b.out}},
		{"compare", []string{"batch", "compare", b.out + ":" + args[8], b.out + ":" + args[10]}},
		{"report", []string{"batch", "report", b.out}},
	} {
		status := 0
		if c.name == "the same command again" {
			status = 60
		}
		text, took := b.run(status, c.args...)
		t.Logf("%s: %s, %d bytes", c.name, took.Round(time.Millisecond), len(text))
	}
	page, err := os.ReadFile(filepath.Join(b.out, report.File))
	if rows := bytes.Count(page, []byte(`class="trial `)); err != nil || rows != min(n, 10_000) {
		t.Errorf("the report has %d rows: %v", rows, err)
	}
	t.Logf("%s: %d bytes", report.File, len(page))
	if dir := os.Getenv("CAISSON_SAMPLE_REPORTS"); dir != "" {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("many-%d.html", n)), page, 0o644))
	}
}

const maxTrialBytes = 1024

// checkMemory fails the test if memory grows with the trials, after the first fifth.
func (b *manyBatch) checkMemory(samples string, n int) {
	b.t.Helper()
	text, err := os.ReadFile(samples)
	must(b.t, err)
	var sumX, sumY, sumXX, sumXY, count float64
	for line := range strings.Lines(string(text)) {
		var lines, heap, resident, goroutines int
		if _, err := fmt.Sscan(line, &lines, &heap, &resident, &goroutines); err != nil {
			b.t.Fatal(err)
		}
		b.t.Logf("%5d trials: heap %.1f MB, resident %.1f MB, %d goroutines", lines, float64(heap)/1e6, float64(resident)/1e6, goroutines)
		if lines < n/5 {
			continue
		}
		x, y := float64(lines), float64(heap)
		sumX, sumY, sumXX, sumXY, count = sumX+x, sumY+y, sumXX+x*x, sumXY+x*y, count+1
	}
	slope := (count*sumXY - sumX*sumY) / (count*sumXX - sumX*sumX)
	b.t.Logf("the heap grows by %.0f bytes per trial", slope)
	if !(slope < maxTrialBytes) {
		b.t.Errorf("the heap grows by %.0f bytes per trial, want less than %d", slope, maxTrialBytes)
	}
	if count < 5 {
		b.t.Errorf("%.0f samples", count)
	}
}
