package observe

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Container observes everything except commands and the mounts below the
// workspace, which the caller adds.
func Container(workspace string) wire.Hello {
	table := readMounts()
	groups := readCgroups(table)
	h := wire.Hello{
		Protocol:   wire.Version,
		Kernel:     readText("/proc/version"),
		PID:        os.Getpid(),
		Namespaces: namespaces(),
		UIDMap:     wire.ParseIDMap(readText("/proc/self/uid_map")),
		GIDMap:     wire.ParseIDMap(readText("/proc/self/gid_map")),
		Root:       table.mountAt("/"),
		Workspace:  table.mountAt(workspace),
		Tmpfs:      table.ofType("tmpfs"),
		Mounts:     table.paths(),
		Limits:     groups.readLimits(),
		Interfaces: Interfaces(),
		Localhost:  addressesOf("localhost", readText("/etc/hosts")),
		Nonce:      readText(wire.NoncePath),
	}
	h.Limits.OpenFiles = softLimit(unix.RLIMIT_NOFILE)
	h.Limits.CoreBytes = softLimit(unix.RLIMIT_CORE)
	h.Limits.UserPIDs = softLimit(unix.RLIMIT_NPROC)
	if id, err := identity.Read("/proc/self/status"); err == nil {
		h.Guest = id
	}
	return h
}

// Directories returns the mounts below the workspace, and those at the further
// mount points. The caller must have the commands' identity: the guest's own
// must not enter a directory that is private to its owner.
func Directories(workspace string, further []string) (below, others []wire.Mount) {
	table := readMounts()
	for _, path := range further {
		others = append(others, table.mountAt(path))
	}
	return table.mountsBelow(workspace), others
}

// readText returns a small file's content, trimmed, or "".
func readText(name string) string {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // an image may have a FIFO there
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 4096)
	n, _ := f.Read(buf)
	return strings.TrimSpace(string(buf[:n]))
}

func namespaces() map[string]uint64 {
	out := map[string]uint64{}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		link, err := os.Readlink("/proc/self/ns/" + kind) // "pid:[4026531836]"
		if err != nil {
			continue
		}
		_, number, _ := strings.Cut(link, "[")
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); err == nil {
			out[kind] = n
		}
	}
	return out
}

// Interfaces returns the names of the network interfaces.
func Interfaces() []string { return interfaceNames(readText("/proc/net/dev")) }

// interfaceNames parses /proc/net/dev: two lines of headings, then "name:
// counters".
func interfaceNames(table string) []string {
	var out []string
	for line := range strings.Lines(table) {
		if name, _, ok := strings.Cut(line, ":"); ok && !strings.Contains(name, "|") {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}

// addressesOf returns a name's addresses in a hosts file.
func addressesOf(name, hosts string) []string {
	var out []string
	for line := range strings.Lines(hosts) {
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 1 && slices.Contains(fields[1:], name) {
			out = append(out, fields[0])
		}
	}
	return out
}

// softLimit returns a soft limit, or -1 for none.
func softLimit(resource int) int64 {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil {
		return 0
	}
	if l.Cur == unix.RLIM_INFINITY {
		return -1
	}
	return int64(min(l.Cur, 1<<62))
}
