package main

import (
	"fmt"
	"strings"
)

// metric names one number of one benchmark: the package below the module, the
// benchmark without its prefix, and the unit.
type metric struct{ pkg, bench, unit string }

// row is one target: the ratio of two numbers, or one number.
type row struct {
	what string
	ours metric
	// peer is what ours is divided by; without one ours itself is compared.
	peer metric
	// needs names the program that the peer is, where a machine may lack it.
	needs string
	// inverse divides the peer by ours: of two times, the ratio of the speeds.
	inverse bool
	// atMost says that the result must not be above limit; otherwise not below. A row
	// for comparison has no limit.
	atMost, comparison bool
	limit              float64
	// unit is that of a row without a peer, for people; by is what one of it is
	// in the benchmark's.
	unit string
	by   float64
}

// killedBy begins the unit that tells how commands are killed.
const killedBy = "killed-by-"

// rows are the targets of the design, in its order.
func rows() []row {
	const ns, ms = "p50-ns", 1e6
	e2e := func(bench, unit string) metric { return metric{"e2e", bench, unit} }
	list := []row{
		{what: "exec round trip, docker / host fork+exec", ours: e2e("Exec/docker", ns), peer: e2e("Exec/docker", "host-"+ns), atMost: true, limit: 1.7},
		{what: "exec round trip, runc / host fork+exec", ours: e2e("Exec/runc", ns), peer: e2e("Exec/runc", "host-"+ns), atMost: true, limit: 1.7},
		{what: "exec by the engine's API / exec round trip, docker", ours: e2e("Exec/docker", ns), peer: e2e("Exec/docker", "engine-api-"+ns), inverse: true, limit: 25},
		{what: "exec round trip, gvisor / runsc exec", ours: e2e("Exec/gvisor", ns), peer: e2e("Exec/gvisor", "runtime-"+ns), atMost: true, limit: 0.65},
		{what: "cold start, docker / engine create+start+exec", ours: metric{"sandbox/docker", "Start", ns}, peer: metric{"sandbox/docker", "Start", "engine-" + ns}, atMost: true, limit: 0.6},
		{what: "cold start, gvisor / bare run of the stock runsc", ours: metric{"sandbox/oci", "Start/gvisor", ns}, peer: metric{"sandbox/oci", "Start/gvisor", "bare-" + ns}, needs: "bin/runsc-stock", atMost: true, limit: 1.25},
		{what: "cold start, runc / bare runc run", ours: metric{"sandbox/oci", "Start/runc", ns}, peer: metric{"sandbox/oci", "Start/runc", "bare-" + ns}, atMost: true, limit: 1.4},
	}
	for _, b := range []struct {
		name               string
		kill, memory, flow float64
	}{{"docker", 15, 5.5, 0.4}, {"gvisor", 50, 21, 0.05}, {"runc", 15, 2.5, 0.4}} {
		list = append(list,
			row{what: "caisson exec -- true / a start and a first command, " + b.name, ours: e2e("Fresh/"+b.name, ns), peer: e2e("Fresh/"+b.name, "start-"+ns), atMost: true, limit: 1.3},
			row{what: "kill to dead, 16 daemons, p99, " + b.name, ours: e2e("Kill/"+b.name, "p99-ns"), atMost: true, limit: b.kill, unit: "ms", by: ms},
			row{what: "idle memory a session (PSS), " + b.name, ours: e2e("Idle/"+b.name, "KiB-a-session"), atMost: true, limit: b.memory, unit: "MB", by: 1e6 / 1024},
			row{what: "stdout with hash, as in a session / dd | cat on the host, " + b.name, ours: e2e("Output/"+b.name, "drained-"+ns), peer: e2e("Output/"+b.name, "host-"+ns), inverse: true, limit: b.flow},
			row{what: "stdout with hash, every byte to the host / dd | cat on the host, " + b.name, ours: e2e("Output/"+b.name, ns), peer: e2e("Output/"+b.name, "host-"+ns), inverse: true, limit: b.flow},
			row{what: "memory that the host needs more for it, " + b.name, ours: e2e("Output/"+b.name, "MiB-grown"), atMost: true, limit: 16, unit: "MiB", by: 1})
	}
	for _, b := range []struct{ calls, bench string }{{"one call", "Round/none/1"}, {"four calls at once, a call", "Round/none/4"}} {
		list = append(list, row{what: "the dispatcher alone, " + b.calls, ours: metric{"tools/dispatch", b.bench, ns}, atMost: true, limit: 50, unit: "µs", by: 1e3})
	}
	for _, b := range []struct{ what, unit string }{{"near round 10", "ns/round-10"}, {"near round 500", "ns/round-500"}} {
		list = append(list, row{what: "the loop with records that are not synced, a round " + b.what, ours: metric{"runner", "Loop/unsynced", b.unit}, atMost: true, limit: 0.5, unit: "ms", by: ms})
	}
	list = append(list,
		row{what: "the loop with synced records, a round", ours: metric{"runner", "Loop/synced", "ns/round"}, atMost: true, limit: 10, unit: "ms", by: ms},
		row{what: "records a second, one writer, a sync each 100", ours: metric{"runner/record", "Recorder/batched/writers=1", "records/s"}, limit: 10, unit: "thousand", by: 1e3},
		row{what: "one lock and one fsync a record / shared syncs, each record on the disk, 64 writers", ours: metric{"runner/record", "Recorder/durable/writers=64", "ns/op"}, peer: metric{"runner/record", "Recorder/naive/writers=64", "ns/op"}, inverse: true, limit: 4})
	search := func(bench, side string) metric { return e2e("Search/"+bench, side+ns) }
	list = append(list,
		row{what: "grep for one name in 100,000 files / ripgrep with as many threads", ours: search("grep", ""), peer: search("grep", "rg-"), needs: "rg of Debian's ripgrep", atMost: true, limit: 1.2},
		row{what: "grep of the same in overlay mode / in bind mode", ours: search("grep", "overlay-"), peer: search("grep", ""), atMost: true, limit: 1.5},
		row{what: "glob **/f49.go in 100,000 files / fd with as many threads", ours: search("glob", ""), peer: search("glob", "fd-"), needs: "fdfind of Debian's fd-find", atMost: true, limit: 1.2},
		row{what: "glob of the same in overlay mode / fd in the directory itself", ours: search("glob", "overlay-"), peer: search("glob", "fd-"), needs: "fdfind of Debian's fd-find", atMost: true, limit: 1.2})
	for _, mode := range []string{"bind", "overlay"} {
		list = append(list, row{what: "memory of a session on these files, " + mode + " mode", ours: e2e("Session/"+mode, "KiB-peak"), atMost: true, limit: 40, unit: "MB", by: 1e6 / 1024})
	}
	list = append(list,
		row{what: "run --resume of a session of 10,000 records, to the end of the program", ours: e2e("Resume", ns), atMost: true, limit: 1, unit: "s", by: 1e9},
		row{what: "memory of run --resume of a session of 10,000 records (peak RSS)", ours: e2e("Resume", "KiB-peak"), atMost: true, limit: 100, unit: "MB", by: 1e6 / 1024})
	list = append(list,
		row{what: "chat, from its start to the prompt", ours: e2e("Chat", "start-"+ns), atMost: true, limit: 100, unit: "ms", by: ms},
		row{what: "chat, from a key to the frame that shows it, p99, during output", ours: e2e("Chat", "key-p99-ns"), atMost: true, limit: 30, unit: "ms", by: ms},
		row{what: "chat, that output in MB/s", ours: e2e("Chat", "MB/s"), limit: 10, unit: "MB/s", by: 1},
		row{what: "chat, rows of its live region left by 200 resizes of tmux", ours: e2e("ChatResizes", "stale-rows"), atMost: true, unit: "rows", by: 1},
		row{what: "chat, lines not once and in order after them", ours: e2e("ChatResizes", "misplaced-lines"), atMost: true, unit: "lines", by: 1})
	for _, name := range []string{"docker", "gvisor", "runc"} {
		list = append(list,
			row{what: "terminal, from a key to its echo, p99, " + name, ours: e2e("Terminal", name+"-p99-ns"), atMost: true, limit: 20, unit: "ms", by: ms},
			row{what: "terminal, from a key to its echo, " + name + " / docker exec -it", ours: e2e("Terminal", name+"-p50-ns"), peer: e2e("Terminal", "engine-p50-ns"), comparison: true})
	}
	list = append(list, row{what: "events: coming back at record 99,604 of 100,000", ours: metric{"runner/server", "Reconnect", ns}, atMost: true, limit: 20, unit: "ms", by: ms})
	for _, b := range []struct {
		what, unit string
		limit      float64
	}{{"caisson version", "version-", 12}, {"caisson --help", "help-", 12}, {"caisson run until its first request to the model, more than version", "first-request-", 25}} {
		list = append(list, row{what: b.what, ours: e2e("Startup", b.unit+ns), atMost: true, limit: b.limit, unit: "ms", by: ms})
	}
	for _, b := range []struct {
		name  string
		limit float64
	}{{"runc", 3}, {"gvisor", 1.5}, {"docker", 1.5}} {
		trials := func(unit string) metric { return e2e("Trials", unit) }
		list = append(list,
			row{what: "20 trials that do nothing, " + b.name + " / by hand, docker run twice a trial", ours: trials(b.name + "-" + ns), peer: trials("hand-" + ns), inverse: true, limit: b.limit},
			row{what: "processor time of them, " + b.name + " / by hand", ours: trials(b.name + "-cpu-ns"), peer: trials("hand-cpu-ns"), inverse: true, comparison: true})
	}
	list = append(list, row{what: "memory of caisson batch for each trial that runs", ours: e2e("TrialMemory", "KiB-a-trial"), atMost: true, limit: 2, unit: "MB", by: 1e6 / 1024})
	for _, g := range growths() {
		list = append(list, row{what: fmt.Sprintf("%s, %d / %d %s", g.what, 100*g.fewest, g.fewest, g.things), ours: g.took(100), peer: g.took(1), atMost: true, limit: g.limit})
	}
	list = append(list, isolationRows()...)
	list = append(list, networkRows()...)
	return append(list, row{what: "READ of 4 KiB / os.ReadFile", ours: e2e("Read", ns), peer: e2e("Read", "os-"+ns), atMost: true, limit: 0.9})
}

// isolationRows are those of gVisor without namespaces, as an ordinary user.
func isolationRows() []row {
	isolation := func(unit string) metric { return metric{"e2e", "Isolation", unit} }
	var list []row
	for _, c := range []struct{ what, unit string }{
		{"caisson exec -- true", "start-p50-ns"}, {"caisson sandbox exec ID -- true", "command-p50-ns"}, {"memory of an idle sandbox (PSS) in MB", "bytes"},
	} {
		list = append(list,
			row{what: c.what + ", gvisor without namespaces / with, ordinary user", ours: isolation(c.unit), peer: isolation("namespaces-" + c.unit), atMost: true, limit: 1.1},
			row{what: c.what + ", gvisor without namespaces / the same by the stock runsc", ours: isolation(c.unit), peer: isolation("stock-" + c.unit), needs: "bin/runsc-stock", comparison: true})
	}
	return list
}

// networkRows are those of the network of commands.
func networkRows() []row {
	const ns, ms = "p50-ns", 1e6
	slirp := func(mtu string) string { return "slirp4netns, MTU " + mtu }
	peers := []struct{ what, prefix, needs string }{
		{"a plain proxy on the host", "relay-", ""}, {slirp("1500"), "slirp1500-", "slirp4netns"}, {slirp("65520"), "slirp65520-", "slirp4netns"},
		{"pasta, MTU 65520", "pasta-", "pasta"},
	}
	var list []row
	for _, b := range []struct {
		name               string
		flow, first, names float64
	}{{"docker", 1, 1, 0.8}, {"gvisor", 1.2, 2, 1.5}, {"runc", 2, 0.6, 0.5}} {
		network := func(unit string) metric { return metric{"e2e", "Network/" + b.name, unit} }
		list = append(list, row{what: "network, one download, " + b.name, ours: network("download-Gbit/s"), limit: b.flow, unit: "Gbit/s", by: 1})
		for _, p := range peers {
			list = append(list, row{what: "network, one download, " + b.name + " / " + p.what, ours: network("download-" + ns), peer: network(p.prefix + "download-" + ns), needs: p.needs, inverse: true, comparison: true})
		}
		list = append(list, row{what: "network, connect and first byte, more than direct, " + b.name, ours: network("connect-more-" + ns), atMost: true, limit: b.first, unit: "ms", by: ms})
		for _, p := range peers {
			list = append(list, row{what: "network, connect and first byte, " + b.name + " / " + p.what, ours: network("connect-" + ns), peer: network(p.prefix + "connect-" + ns), needs: p.needs, comparison: true})
		}
		list = append(list,
			row{what: "network, name lookup, " + b.name, ours: network("name-" + ns), atMost: true, limit: b.names, unit: "ms", by: ms},
			row{what: "exec round trip during a download / idle, " + b.name, ours: network("exec-beside-" + ns), peer: network("exec-" + ns), atMost: true, limit: 2},
			row{what: "exec round trip during a download, p99, " + b.name, ours: network("exec-beside-p99-ns"), atMost: true, limit: 30, unit: "ms", by: ms},
			row{what: "network, idle memory a session (PSS), more than without, " + b.name, ours: network("KiB-more"), atMost: true, limit: 300, unit: "KiB", by: 1},
			row{what: "session and its first command with a network / without, " + b.name, ours: network("start-" + ns), peer: network("start-without-" + ns), comparison: true})
		flood := func(unit string) metric { return metric{"e2e", "Flood/" + b.name, unit} }
		list = append(list,
			row{what: "exec round trip beside 1,000 connections that wait / idle, " + b.name, ours: flood("held-" + ns), peer: flood("idle-" + ns), atMost: true, limit: 2},
			row{what: "exec round trip beside connections without end / idle, " + b.name, ours: flood("churn-" + ns), peer: flood("idle-" + ns), atMost: true, limit: 2},
			row{what: "exec round trip beside the same by a plain proxy on the host / idle, " + b.name, ours: flood("relay-churn-" + ns), peer: flood("idle-" + ns), comparison: true})
	}
	return list
}

// line is a row with its result.
type line struct{ what, ours, peer, result, target, verdict string }

// evaluate compares what was measured with the targets; a row whose benchmark
// or peer did not run says so.
func evaluate(rows []row, measured map[metric]float64) []line {
	var lines []line
	for _, r := range rows {
		l := line{what: r.what, target: r.target(), verdict: "not measured"}
		for m := range measured {
			if method, ok := strings.CutPrefix(m.unit, killedBy); ok && m.pkg == r.ours.pkg && m.bench == r.ours.bench {
				l.what += " (kills by " + method + ")"
			}
		}
		ours, haveOurs := measured[r.ours]
		peer, havePeer := measured[r.peer]
		switch {
		case r.peer == metric{} && haveOurs:
			value := ours / r.by
			l.result = fmt.Sprintf("%.2f %s", value, r.unit)
			l.verdict = r.verdict(value)
		case haveOurs && havePeer && peer > 0 && ours > 0:
			value := ours / peer
			if r.inverse {
				value = peer / ours
			}
			l.ours, l.peer, l.result = milliseconds(ours), milliseconds(peer), fmt.Sprintf("%.2f", value)
			l.verdict = r.verdict(value)
		case haveOurs && !havePeer:
			l.ours = milliseconds(ours)
			if r.needs != "" {
				l.verdict = "no peer: " + r.needs
			}
		}
		lines = append(lines, l)
	}
	return lines
}

func milliseconds(ns float64) string { return fmt.Sprintf("%.3f", ns/1e6) }

func (r row) target() string {
	if r.comparison {
		return ""
	}
	sign := "≥"
	if r.atMost {
		sign = "≤"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %g %s", sign, r.limit, r.unit))
}

func (r row) verdict(value float64) string {
	if r.comparison {
		return ""
	}
	if r.atMost && value <= r.limit || !r.atMost && value >= r.limit {
		return "met"
	}
	return "MISSED"
}
