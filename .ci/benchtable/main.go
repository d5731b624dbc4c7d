// Command benchtable reads the output of `go test -bench` on standard input,
// passes it on to standard error, and prints the targets as
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

// metric names one number of one benchmark: the package below the module, the
// benchmark without its prefix, and the unit.
type metric struct{ pkg, bench, unit string }

// row is one target: a ratio of two medians, or one that a benchmark reports.
type row struct {
	what string
	ours metric
	// peer is empty where ours is a ratio already.
	peer metric
	// atMost says that the ratio must not be above limit; otherwise not below.
	atMost bool
	limit  float64
}

// rows are the targets, in the order in which they are printed.
func rows() []row {
	exec := func(name string) metric { return metric{"e2e", "Exec/" + name, "p50-ns"} }
	output := func(name string) metric { return metric{"e2e", "Output/" + name, "p50-ns"} }
	read := func(name string) metric { return metric{"e2e", "Read/" + name, "p50-ns"} }
	return []row{
		{"exec round trip, docker / host fork+exec", exec("docker"), exec("host"), true, 1.7},
		{"exec round trip, runc / host fork+exec", exec("runc"), exec("host"), true, 1.7},
		{"exec by the engine's API / exec round trip, docker", exec("engine-api"), exec("docker"), false, 25},
		{"exec round trip, gvisor / runsc exec", exec("gvisor"), exec("runsc-exec"), true, 0.55},
		{"exec round trip, runc / runc exec", exec("runc"), exec("runc-exec"), true, 1},
		{what: "cold start, docker / engine create+start+exec", ours: metric{"sandbox/docker", "Start", "x-engine"}, atMost: true, limit: 0.6},
		{what: "cold start, gvisor / bare runsc run", ours: metric{"sandbox/oci", "Start/gvisor", "vs-bare"}, atMost: true, limit: 1.05},
		{what: "cold start, runc / bare runc run", ours: metric{"sandbox/oci", "Start/runc", "vs-bare"}, atMost: true, limit: 1.05},
		{"64 MiB of output, docker / host pipe", output("docker"), output("host"), true, 2.5},
		{"64 MiB of output, runc / host pipe", output("runc"), output("host"), true, 2.5},
		{"64 MiB of output, gvisor / host pipe", output("gvisor"), output("host"), true, 20},
		{"read of 4 KiB, workspace / os.ReadFile", read("workspace"), read("os"), true, 0.9},
	}
}

// module begins the package lines of go test.
const module = "pkg: github.com/caisson-run/caisson/"

// read gives every number of every benchmark.
func read(r io.Reader) (map[metric]float64, error) {
	measured := map[metric]float64{}
	pkg := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), module); ok {
			pkg = rest
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := withoutProcessors(strings.TrimPrefix(fields[0], "Benchmark"))
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			measured[metric{pkg, name, fields[i+1]}] = value
		}
	}
	return measured, lines.Err()
}

// withoutProcessors cuts the number of processors that go test appends.
func withoutProcessors(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	if _, err := strconv.Atoi(name[i+1:]); err != nil {
		return name
	}
	return name[:i]
}

// table renders the rows; one whose benchmark or peer did not run says so.
func table(rows []row, measured map[metric]float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-52s %10s %10s %8s  %s\n", "what, in one run", "ours ms", "peer ms", "ratio", "target")
	for _, r := range rows {
		ours, haveOurs := measured[r.ours]
		peer, havePeer := measured[r.peer]
		switch {
		case r.peer == metric{} && haveOurs:
			fmt.Fprintf(&b, "%-52s %10s %10s %8.2f  %s\n", r.what, "", "", ours, r.verdict(ours))
		case haveOurs && havePeer && peer > 0:
			fmt.Fprintf(&b, "%-52s %10.3f %10.3f %8.2f  %s\n", r.what, ours/1e6, peer/1e6, ours/peer, r.verdict(ours/peer))
		default:
			fmt.Fprintf(&b, "%-52s not measured here\n", r.what)
		}
	}
	return b.String()
}

// verdict is the target and whether a ratio meets it.
func (r row) verdict(ratio float64) string {
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
