package observe

import (
	"bytes"
	"cmp"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// cgroups maps each controller of this container to the directory of its files,
// if mounted. The unified hierarchy's name is "unified".
type cgroups map[string]string

// readCgroups matches the mount table with /proc/self/cgroup. In a cgroup
// namespace the container's own cgroup is "/". Otherwise the mount's root shows
// how much of the path the mount contains.
func readCgroups(table mountinfo) cgroups {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	return findCgroups(table, string(data))
}

func findCgroups(table mountinfo, own string) cgroups {
	out := cgroups{}
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, m := range table {
			for controller := range strings.SplitSeq(parts[1], ",") {
				if !m.isCgroup(controller) {
					continue
				}
				if rel, ok := strings.CutPrefix(parts[2], strings.TrimSuffix(m.root, "/")); ok {
					out[cmp.Or(controller, "unified")] = path.Join(m.path, rel)
				}
			}
		}
	}
	return out
}

// isCgroup reports whether the mount is a controller's hierarchy; "" is the
// unified one.
func (m mountLine) isCgroup(controller string) bool {
	if controller == "" {
		return m.kind == "cgroup2"
	}
	return m.kind == "cgroup" && slices.Contains(m.options, controller)
}

func (c cgroups) readFile(controller, file string) (string, bool) {
	dir, ok := c[controller]
	if !ok {
		return "", false
	}
	data, err := os.ReadFile(path.Join(dir, file))
	return strings.TrimSpace(string(data)), err == nil
}

// readLimit reads a limit: -1 means none, 0 that it can't be read.
func (c cgroups) readLimit(controller, file string) int64 {
	text, ok := c.readFile(controller, file)
	if !ok {
		return 0
	}
	return parseLimit(text)
}

func parseLimit(text string) int64 {
	if text == "max" {
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	// cgroup v1 reports "none" as the largest multiple of a page.
	if n < 0 || n >= math.MaxInt64-(1<<16) {
		return -1
	}
	return n
}

// milliCPUs converts a quota and its period, both in microseconds.
func milliCPUs(quota, period int64) int64 {
	if quota < 0 {
		return -1
	}
	if quota == 0 || period <= 0 {
		return 0
	}
	return quota * 1000 / period
}

func (c cgroups) readLimits() wire.Limits {
	var l wire.Limits
	if _, ok := c.readFile("unified", "memory.max"); ok {
		l.MemoryBytes = c.readLimit("unified", "memory.max")
		l.PIDs = c.readLimit("unified", "pids.max")
		text, _ := c.readFile("unified", "cpu.max")
		if quota, period, ok := strings.Cut(text, " "); ok {
			l.MilliCPUs = milliCPUs(parseLimit(quota), parseLimit(period))
		}
		return l
	}
	if _, ok := c["memory"]; ok {
		l.MemoryBytes = c.readLimit("memory", "memory.limit_in_bytes")
		l.PIDs = c.readLimit("pids", "pids.max")
		l.MilliCPUs = milliCPUs(c.readLimit("cpu", "cpu.cfs_quota_us"), c.readLimit("cpu", "cpu.cfs_period_us"))
	}
	return l
}

// Counter reads one of the kernel's counts of events in the container. A nil
// Counter can't be read. It is safe for concurrent use.
type Counter struct {
	f   *os.File
	key []byte
}

// OpenCounters returns the counts of out-of-memory kills and of forks refused
// by the limit of processes, or nil for one that is not visible.
func OpenCounters() (oom, pids *Counter) {
	c := readCgroups(readMounts())
	return c.openOOM(), c.openPIDs()
}

// openOOM: both versions have a line "oom_kill N" (v1 since Linux 4.13).
func (c cgroups) openOOM() *Counter {
	return c.openCounter("oom_kill ", [2]string{"unified", "memory.events"}, [2]string{"memory", "memory.oom_control"})
}

// openPIDs: both versions have a line "max N" (v1 since Linux 4.8).
func (c cgroups) openPIDs() *Counter {
	return c.openCounter("max ", [2]string{"unified", "pids.events"}, [2]string{"pids", "pids.events"})
}

// openCounter opens the first of files, each a controller and a name, that has
// a line beginning with key.
func (c cgroups) openCounter(key string, files ...[2]string) *Counter {
	for _, at := range files {
		dir, ok := c[at[0]]
		if !ok {
			continue
		}
		f, err := os.Open(path.Join(dir, at[1]))
		if err != nil {
			continue
		}
		if n := (&Counter{f: f, key: []byte(key)}); n.Read() >= 0 {
			return n
		}
		_ = f.Close()
	}
	return nil
}

// Read returns the number of events so far, or -1 if it can't be read.
func (c *Counter) Read() int64 {
	if c == nil {
		return -1
	}
	buf := make([]byte, 512)
	n, err := unix.Pread(int(c.f.Fd()), buf, 0)
	if err != nil || n <= 0 {
		return -1
	}
	for line := range bytes.Lines(buf[:n]) {
		if text, ok := bytes.CutPrefix(line, c.key); ok {
			if count, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil {
				return count
			}
		}
	}
	return -1
}
