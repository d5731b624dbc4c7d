package oci

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// cgroup is a container's cgroup, for reading back limits and counters. The
// zero value reads nothing.
type cgroup struct {
	memory, pids, cpu string // directories
	v2                bool
}

func cgroupOf(pid int, session string) (cgroup, error) {
	trees, groups, err := readCgroups(strconv.Itoa(pid))
	if err != nil {
		return cgroup{}, err
	}
	var c cgroup
	for _, t := range trees {
		dir, ok := t.dirOf(groups)
		if !ok || filepath.Base(dir) != cgroupPrefix+session {
			continue
		}
		if t.isV2() && len(trees) > 1 {
			continue // v1 has the limits
		}
		at := t.cgroupAt(dir)
		c = cgroup{memory: cmp.Or(c.memory, at.memory), pids: cmp.Or(c.pids, at.pids), cpu: cmp.Or(c.cpu, at.cpu), v2: at.v2}
	}
	if c.memory == "" || c.pids == "" || c.cpu == "" {
		return cgroup{}, fmt.Errorf("process %d is not in the cgroup of session %s", pid, session)
	}
	return c, nil
}

// readLimits reads back the limits that the kernel enforces; 0 means none or
// unknown.
func (c cgroup) readLimits() sandbox.AttestedLimits {
	if c.v2 {
		l := sandbox.AttestedLimits{MemoryBytes: readNumber(c.memory, "memory.max"), PIDs: readNumber(c.pids, "pids.max")}
		if f := strings.Fields(readText(c.cpu, "cpu.max")); len(f) == 2 {
			l.MilliCPUs = milliCPUs(parseNumber(f[0]), parseNumber(f[1]))
		}
		return l
	}
	return sandbox.AttestedLimits{
		MemoryBytes: readNumber(c.memory, "memory.limit_in_bytes"),
		PIDs:        readNumber(c.pids, "pids.max"),
		MilliCPUs:   milliCPUs(readNumber(c.cpu, "cpu.cfs_quota_us"), readNumber(c.cpu, "cpu.cfs_period_us")),
	}
}

// readSwap reads back the limit of memory plus swap, or -1 if the kernel has
// none.
func (c cgroup) readSwap() int64 {
	name := "memory.memsw.limit_in_bytes"
	if c.v2 {
		name = "memory.swap.max"
	}
	text := readText(c.memory, name)
	if text == "" {
		return -1
	}
	n := parseNumber(text)
	if c.v2 && text != "max" {
		n += readNumber(c.memory, "memory.max")
	}
	return n
}

func milliCPUs(quota, period int64) int64 {
	if quota <= 0 || period <= 0 {
		return 0
	}
	return quota * 1000 / period
}

// findExceeded returns the limit that was hit according to the kernel's
// counters, or nil. Call it before the cgroup is removed.
func (c cgroup) findExceeded() *limits.ExceededError {
	if c.memory == "" {
		return nil
	}
	l := c.readLimits()
	peak := readNumber(c.memory, "memory.max_usage_in_bytes")
	if c.v2 {
		peak = readNumber(c.memory, "memory.peak")
	}
	if c.readKills() > 0 {
		return &limits.ExceededError{Kind: limits.KindMemory, Limit: l.MemoryBytes, Used: max(peak, l.MemoryBytes)}
	}
	if c.readRefusedForks() > 0 {
		return &limits.ExceededError{Kind: limits.KindPIDs, Limit: l.PIDs, Used: max(readNumber(c.pids, "pids.peak"), l.PIDs)}
	}
	return nil
}

// readKills returns how many of the cgroup's processes the kernel killed because
// memory ran out.
func (c cgroup) readKills() int64 {
	file := "memory.oom_control"
	if c.v2 {
		file = "memory.events"
	}
	return readCounter(readText(c.memory, file), "oom_kill")
}

// readRefusedForks returns how many forks failed at the cgroup's limit.
func (c cgroup) readRefusedForks() int64 { return readCounter(readText(c.pids, "pids.events"), "max") }

// readCounter returns 7 for the line "name 7" in text.
func readCounter(text, name string) int64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return parseNumber(f[1])
		}
	}
	return 0
}

func readText(dir, name string) string {
	if dir == "" {
		return ""
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func readNumber(dir, name string) int64 { return parseNumber(readText(dir, name)) }

// parseNumber returns 0 for "max", for anything else that is not a number, and
// for the number that means no limit in cgroup v1.
func parseNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n >= 1<<62 {
		return 0
	}
	return n
}
