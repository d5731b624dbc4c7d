// Command benchtable reads the output of `go test -bench` on standard input,
// passes it on to standard error, and prints the targets of docs/testing.md as
// ratios of what was measured in this one run.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	measured, err := read(io.TeeReader(os.Stdin, os.Stderr))
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchtable:", err)
		os.Exit(1)
	}
	if len(measured) == 0 {
		fmt.Fprintln(os.Stderr, "benchtable: no benchmark ran")
		os.Exit(1)
	}
	fmt.Print(table(rows(), measured))
}

// row is one target: the median of one benchmark against that of its peer.
type row struct {
	what        string
	bench, peer string
	// atMost says that the ratio must not be above limit; otherwise not below.
	atMost bool
	limit  float64
}

// rows are the targets, in the order in which they are printed. Exec rows are
// the ones that this version must meet; the others are for watching.
func rows() []row {
	return []row{
		{"exec round trip, docker / host fork+exec", "Exec/docker", "Exec/host", true, 3},
		{"exec round trip, runc / host fork+exec", "Exec/runc", "Exec/host", true, 3},
		{"exec by the engine's API / exec round trip, docker", "Exec/engine-api", "Exec/docker", false, 15},
		{"exec round trip, gvisor / runsc exec", "Exec/gvisor", "Exec/runsc-exec", true, 0.55},
		{"exec round trip, runc / runc exec", "Exec/runc", "Exec/runc-exec", true, 1},
		{"cold start, docker / exec by the engine's API", "Start/docker", "Exec/engine-api", true, 0},
		{"cold start, runc / host fork+exec", "Start/runc", "Exec/host", true, 0},
		{"cold start, gvisor / host fork+exec", "Start/gvisor", "Exec/host", true, 0},
		{"64 MiB of output, docker / host pipe", "Output/docker", "Output/host", true, 2.5},
		{"64 MiB of output, runc / host pipe", "Output/runc", "Output/host", true, 2.5},
		{"64 MiB of output, gvisor / host pipe", "Output/gvisor", "Output/host", true, 20},
		{"read of 4 KiB, workspace / os.ReadFile", "Read/workspace", "Read/os", true, 0.9},
	}
}

// read gives the median, in nanoseconds, of each benchmark by its name without
// "Benchmark" and the number of processors.
func read(r io.Reader) (map[string]float64, error) {
	measured := map[string]float64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		for i := 2; i+1 < len(fields); i += 2 {
			if fields[i+1] != "p50-ns" {
				continue
			}
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			measured[name] = value
		}
	}
	return measured, lines.Err()
}

// table renders the rows; one whose benchmark or peer did not run says so.
func table(rows []row, measured map[string]float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-52s %10s %10s %8s  %s\n", "what (medians of one run)", "ours ms", "peer ms", "ratio", "target")
	for _, r := range rows {
		ours, haveOurs := measured[r.bench]
		peer, havePeer := measured[r.peer]
		if !haveOurs || !havePeer || peer == 0 {
			fmt.Fprintf(&b, "%-52s %10s\n", r.what, "not measured here")
			continue
		}
		fmt.Fprintf(&b, "%-52s %10.3f %10.3f %8.2f  %s\n", r.what, ours/1e6, peer/1e6, ours/peer, r.verdict(ours/peer))
	}
	return b.String()
}

// verdict is the target and whether a ratio meets it.
func (r row) verdict(ratio float64) string {
	if r.limit == 0 {
		return "–"
	}
	sign, met := "≥", ratio >= r.limit
	if r.atMost {
		sign, met = "≤", ratio <= r.limit
	}
	mark := "met"
	if !met {
		mark = "MISSED"
	}
	return fmt.Sprintf("%s %g %s", sign, r.limit, mark)
}
