package main

import (
	"fmt"
	"strings"
)

// text is the table for a terminal.
func text(lines []line) string {
	var b strings.Builder
	const form = "%-70s %10s %10s %10s  %-9s %s\n"
	fmt.Fprintf(&b, form, "medians, in one run", "ours, ms", "peer, ms", "result", "target", "")
	for _, l := range lines {
		fmt.Fprintf(&b, form, l.what, l.ours, l.peer, l.result, l.target, l.verdict)
	}
	return b.String()
}

// figure is a row of the page: a number of each backend, and one to compare them with.
type figure struct {
	what string
	ours func(backend string) metric
	by   float64 // what one of the row's unit is in the benchmark's
	peer metric  // none if it is zero
	with string  // what the peer is
}

// figures are the rows of the page: what a sandbox costs. The terminal has all rows.
func figures() []figure {
	const ns, ms = "p50-ns", 1e6
	e2e := func(bench, unit string) func(string) metric {
		return func(backend string) metric { return metric{"e2e", bench + "/" + backend, unit} }
	}
	start := func(backend string) metric {
		if backend == "docker" {
			return metric{"sandbox/docker", "Start", ns}
		}
		return metric{"sandbox/oci", "Start/" + backend, ns}
	}
	trials := func(backend string) metric { return metric{"e2e", "Trials", backend + "-" + ns} }
	return []figure{
		{"run `sh -c true` in a running sandbox, ms", e2e("Exec", ns), ms, metric{"e2e", "Exec/runc", "host-" + ns}, "on the host"},
		{"start a sandbox and run a first command, ms", start, ms, metric{"sandbox/docker", "Start", "engine-" + ns}, "create, start and exec by the engine"},
		{"the same with a sandbox from the pool, ms", e2e("Warm", ns), ms, metric{}, ""},
		{"`caisson exec -- true`, from start to end, ms", e2e("Fresh", ns), ms, metric{}, ""},
		{"kill a command with 16 daemons, to the proof, p99, ms", e2e("Kill", "p99-ns"), ms, metric{}, ""},
		{"memory of an idle sandbox, MB", e2e("Idle", "KiB-a-session"), 1e6 / 1024, metric{}, ""},
		{"256 MiB of output, counted and hashed, ms", e2e("Output", "drained-"+ns), ms, metric{"e2e", "Output/runc", "host-" + ns}, "a pipe on the host"},
		{"download through the rules for the network, Gbit/s", e2e("Network", "download-Gbit/s"), 1, metric{}, ""},
		{"first byte of a connection, more than without a sandbox, ms", e2e("Network", "connect-more-"+ns), ms, metric{}, ""},
		{"20 trials that do nothing, s", trials, 1e9, metric{"e2e", "Trials", "hand-" + ns}, "`docker run` twice a trial"},
	}
}

var backends = []string{"docker", "gvisor", "runc"}

// markdown is the table for the page.
func markdown(measured map[metric]float64) string {
	var b strings.Builder
	b.WriteString("| | docker | gvisor | runc | for comparison |\n|---|---|---|---|---|\n")
	number := func(m metric, by float64) string {
		if value, ok := measured[m]; ok {
			return fmt.Sprintf("%.1f", value/by)
		}
		return ""
	}
	for _, f := range figures() {
		cells := []string{f.what}
		for _, backend := range backends {
			cells = append(cells, number(f.ours(backend), f.by))
		}
		peer := number(f.peer, f.by)
		if peer != "" {
			peer += ", " + f.with
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(append(cells, peer), " | "))
	}
	return b.String()
}

// The markers between which a page is written by this program.
const (
	begin = "<!-- make bench writes from here -->"
	end   = "<!-- to here -->"
)

// replace puts content between the markers of a page.
func replace(page, content string) (string, error) {
	before, rest, ok := strings.Cut(page, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the markers %q and %q are not there", begin, end)
	}
	return before + begin + "\n" + content + end + after, nil
}
