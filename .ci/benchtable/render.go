package main

import (
	"fmt"
	"strconv"
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

// markdown is the table for the page, "" if nothing of it was measured.
func markdown(measured map[metric]float64) string {
	var b strings.Builder
	found := false
	b.WriteString("| | docker | gvisor | runc | for comparison |\n|---|---|---|---|---|\n")
	number := func(m metric, by float64) string {
		if value, ok := measured[m]; ok {
			found = true
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
	if !found {
		return ""
	}
	return b.String()
}

// growth is a row of the table of what the number of things costs.
type growth struct {
	what, things string
	bench        string
	fewest       int
	// limit is how many times as long it may take with 100 times as many things.
	limit float64
}

// growths are the rows of that table: what doesn't need the things may take half as long
// again, and what reads them all 100 times as long.
func growths() []growth {
	return []growth{
		{"`caisson exec -- true`, bind mode", "files of the workspace", "bind", 1000, 1.5},
		{"`caisson exec -- true`, overlay mode", "files of the workspace", "overlay", 1000, 1.5},
		{"`caisson exec -- true`, bind mode", "loose objects of its repository", "objects", 1000, 1.5},
		{"`caisson exec -- true`, bind mode", "past sessions", "sessions", 1000, 1.5},
		{"`caisson diff --stat`", "changed files", "changes", 1000, 100},
		{"`caisson trace show`", "records of the session", "records", 1000, 100},
		{"`caisson batch report`", "trials", "trials", 1000, 100},
		{"`caisson run`, replayed answer", "tools of an MCP server", "tools", 10, 100},
		{"a turn over HTTP, replayed answer", "followers of the session", "followers", 1, 100},
	}
}

// took is the time with so many times the fewest things.
func (g growth) took(times int) metric {
	return metric{"e2e", "Growth/" + g.bench, strconv.Itoa(times*g.fewest) + "-p50-ns"}
}

// growthMarkdown is the second table for the page, "" if nothing of it was measured.
func growthMarkdown(measured map[metric]float64) string {
	var b strings.Builder
	for _, g := range growths() {
		few, ok := measured[g.took(1)]
		if !ok {
			continue
		}
		some, many := measured[g.took(10)], measured[g.took(100)]
		fmt.Fprintf(&b, "| %s | %d, %d, %d %s | %.0f | %.0f | %.0f | %.1f | %g |\n", g.what, g.fewest, 10*g.fewest, 100*g.fewest, g.things, few/1e6, some/1e6, many/1e6, many/few, g.limit)
	}
	if b.Len() == 0 {
		return ""
	}
	return "| | with | ms | ms | ms | times | at most |\n|---|---|---|---|---|---|---|\n" + b.String()
}

// The markers between which a page is written by this program: begin or beginGrowth, and
// end.
const (
	begin       = "<!-- make bench writes from here -->"
	beginGrowth = "<!-- make bench writes the growth from here -->"
	end         = "<!-- to here -->"
)

// replace puts content behind the marker from of a page, up to the next end.
func replace(page, from, content string) (string, error) {
	before, rest, ok := strings.Cut(page, from)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the markers %q and %q are not there", from, end)
	}
	return before + from + "\n" + content + end + after, nil
}
