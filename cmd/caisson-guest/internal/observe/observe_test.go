package observe

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const table = `22 1 254:0 / / ro,relatime - ext4 /dev/root rw,errors=remount-ro
23 22 0:5 / /tmp rw,nosuid,nodev shared:2 - tmpfs tmpfs rw,size=512m
24 22 0:6 / /work\040space rw - 9p none rw
25 24 0:7 / /work\040space/sub rw - 9p none rw
26 22 0:8 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
27 22 0:9 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct
28 22 0:10 / /tmp rw - overlay overlay rw
broken
`

func TestMounts(t *testing.T) {
	m := parseMounts(table)
	if root := m.mountAt("/"); root.Type != "ext4" || !cmp.Equal(root.Options, []string{"ro", "relatime", "rw", "errors=remount-ro"}) {
		t.Errorf("root is %+v", root)
	}
	if tmp := m.mountAt("/tmp"); tmp.Type != "overlay" {
		t.Errorf("of two mounts on one path the last is seen, not %+v", tmp)
	}
	if none := m.mountAt("/home"); none.Type != "" {
		t.Errorf("no mount is %+v", none)
	}
	if below := m.mountsBelow("/work space"); len(below) != 1 || below[0].Path != "/work space/sub" {
		t.Errorf("below the workspace are %+v", below)
	}
	if len(m) != 7 {
		t.Errorf("%d mounts are read", len(m))
	}
}

func TestFindCgroups(t *testing.T) {
	for _, tt := range []struct {
		name, own string
		want      cgroups
	}{
		{"seen from outside", "4:memory:/docker/abc/x\n3:cpu,cpuacct:/docker/abc\n", cgroups{
			"memory": "/sys/fs/cgroup/memory/x", "cpu": "/sys/fs/cgroup/cpu/docker/abc", "cpuacct": "/sys/fs/cgroup/cpu/docker/abc",
		}},
		{"elsewhere", "4:memory:/other\n", cgroups{}},
		{"not mounted", "9:pids:/docker/abc\n0::/\n", cgroups{}},
	} {
		if diff := cmp.Diff(tt.want, findCgroups(parseMounts(table), tt.own)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLimits(t *testing.T) {
	v2 := files(t, map[string]string{"memory.max": "67108864\n", "pids.max": "max\n", "cpu.max": "50000 100000\n"})
	v1 := files(t, map[string]string{
		"memory.limit_in_bytes": "9223372036854771712\n",
		"pids.max":              "64\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n",
	})
	for _, tt := range []struct {
		name string
		c    cgroups
		want wire.Limits
	}{
		{"version 2", cgroups{"unified": v2}, wire.Limits{MemoryBytes: 64 << 20, PIDs: -1, MilliCPUs: 500}},
		{"version 1", cgroups{"memory": v1, "pids": v1, "cpu": v1}, wire.Limits{MemoryBytes: -1, PIDs: 64, MilliCPUs: -1}},
		{"nothing", cgroups{}, wire.Limits{}},
	} {
		if diff := cmp.Diff(tt.want, tt.c.readLimits()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for text, want := range map[string]int64{"": 0, "x": 0, "max": -1, "-1": -1, "5": 5, "9223372036854775807": -1} {
		if got := parseLimit(text); got != want {
			t.Errorf("limit %q is %d, want %d (of %d)", text, got, want, math.MaxInt64)
		}
	}
}

func TestOOMCounter(t *testing.T) {
	for name, c := range map[string]cgroups{
		"version 1": {"memory": files(t, map[string]string{"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"})},
		"version 2": {"unified": files(t, map[string]string{"memory.events": "low 0\noom 9\noom_kill 3\noom_group_kill 0\n"})},
	} {
		o := c.openOOM()
		if got := o.Read(); got != 3 {
			t.Errorf("%s: %d kills", name, got)
		}
	}
	for name, c := range map[string]cgroups{
		"none":       {},
		"old kernel": {"memory": files(t, map[string]string{"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"})},
	} {
		if o := c.openOOM(); o != nil || o.Read() != -1 {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func TestAddressesOf(t *testing.T) {
	const hosts = "# 192.0.2.1 localhost\n127.0.0.1 localhost own # x\n::1\tip6-localhost localhost\n\n192.0.2.2 localhost.example\nlocalhost\n"
	if diff := cmp.Diff([]string{"127.0.0.1", "::1"}, addressesOf("localhost", hosts)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestInterfaces(t *testing.T) {
	const dev = "Inter-|   Receive                |  Transmit\n face |bytes    packets|bytes\n    lo:     100 1\n  eth0: 5\n"
	if diff := cmp.Diff([]string{"lo", "eth0"}, interfaceNames(dev)); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
}

// recorded reads a container's own view from testdata. Version 1 (on a hybrid
// machine) and gVisor were recorded in containers of the backends, version 2
// follows the kernel's cgroup-v2.rst.
func recorded(t *testing.T, name string) (mountinfo, cgroups) {
	t.Helper()
	read := func(file string) string {
		data, err := os.ReadFile(filepath.Join("testdata", name, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	table := parseMounts(read("mountinfo"))
	found := findCgroups(table, read("cgroup"))
	for controller, dir := range found {
		found[controller] = filepath.Join("testdata", name, "root", dir)
	}
	return table, found
}

// TestRecorded checks that limits, both counters and the volumes are found with
// both versions of cgroups, with and without a cgroup namespace.
func TestRecorded(t *testing.T) {
	v1 := wire.Limits{MemoryBytes: 2 << 30, PIDs: 256, MilliCPUs: 2000}
	v2 := wire.Limits{MemoryBytes: 2 << 30, PIDs: 256, MilliCPUs: 1500}
	for _, tt := range []struct {
		name      string
		limits    wire.Limits
		oom, pids int64
		volumes   Volumes
	}{
		{"docker-v1", v1, 0, 0, Volumes{"/dev/shm", "/tmp", "/run", "/home/agent"}},
		{"runc-v1", v1, 0, 0, Volumes{"/tmp", "/home/agent", "/run", "/dev/shm"}},
		{"gvisor", wire.Limits{}, -1, -1, Volumes{"/tmp", "/run", "/dev/shm", "/home/agent"}},
		{"docker-v2", v2, 2, 7, Volumes{"/tmp", "/dev/shm"}},
		{"outside-v2", v2, 2, 7, Volumes{"/tmp", "/dev/shm"}},
		{"bound-v2", v2, 2, 7, Volumes{"/tmp", "/dev/shm"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table, groups := recorded(t, tt.name)
			if diff := cmp.Diff(tt.limits, groups.readLimits()); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			if n := groups.openOOM().Read(); n != tt.oom {
				t.Errorf("%d out-of-memory kills, want %d", n, tt.oom)
			}
			if n := groups.openPIDs().Read(); n != tt.pids {
				t.Errorf("%d refused forks, want %d", n, tt.pids)
			}
			home := mountinfo{{path: "/run/identity/1", kind: "tmpfs", root: "/", options: []string{"rw"}}}
			if diff := cmp.Diff(tt.volumes, append(table, home...).volumes("/run/identity")); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
		})
	}
}
