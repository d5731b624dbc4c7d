package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

func makeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		p := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(content), 0o644))
	}
	return root
}

func TestCgroupLayout(t *testing.T) {
	root := makeTree(t, map[string]string{
		"memory/ci/job/memory.memsw.limit_in_bytes": "1", "pids/x": "", "cpu/x": "", "unified/init/x": "",
		"v2/cgroup.controllers": "cpuset cpu io memory pids\n", "v2/user.slice/session.scope/x": "",
		"nested/cgroup.controllers": "cpu memory pids", "nested/job/x": "",
		"container/cgroup.controllers": "cpu memory pids\n", "container/cgroup.type": "domain\n", "container/cgroup.procs": "1\n0\n",
		"moved/cgroup.controllers": "cpu memory pids\n", "moved/cgroup.type": "domain\n", "moved/cgroup.procs": "", "moved/init/cgroup.procs": "1\n",
	})
	at := func(p string) string { return filepath.Join(root, p) }
	tests := []struct {
		name  string
		trees []tree
		own   string
		want  cgroupPlan
		have  []string
	}{
		{
			name: "hybrid, one controller apart",
			trees: []tree{
				{at("memory"), "/", []string{"memory"}},
				{at("pids"), "/", []string{"pids"}},
				{at("cpu"), "/", []string{"cpu", "cpuacct"}},
				{at("unified"), "/", nil},
			},
			own: "4:memory:/ci/job\n8:pids:/\n1:cpu,cpuacct:/\n0::/\n",
			want: cgroupPlan{path: "caisson-ses_1", swap: true, dirs: []string{
				at("memory/ci/job/caisson-ses_1"), at("pids/caisson-ses_1"), at("cpu/caisson-ses_1"), at("unified/caisson-ses_1"),
			}, own: at("cpu"), joined: at("cpu/caisson-ses_1")},
			have: []string{"memory", "pids", "cpu", "cpuacct"},
		},
		{
			name:  "hybrid, and our own processes are not at its root",
			trees: []tree{{at("pids"), "/", []string{"pids"}}, {at("unified"), "/", nil}},
			own:   "8:pids:/\n0::/init\n",
			want: cgroupPlan{path: "caisson-ses_1", swap: true, dirs: []string{
				at("pids/caisson-ses_1"), at("unified/caisson-ses_1"), at("unified/init/caisson-ses_1"),
			}, own: at("pids"), joined: at("pids/caisson-ses_1")},
			have: []string{"pids"},
		},
		{
			name:  "hybrid, and our own cgroup is gone from it",
			trees: []tree{{at("pids"), "/", []string{"pids"}}, {at("unified"), "/", nil}},
			own:   "8:pids:/\n0::/gone\n",
			want: cgroupPlan{
				path: "caisson-ses_1", swap: true, dirs: []string{at("pids/caisson-ses_1"), at("unified/caisson-ses_1")},
				own: at("pids"), joined: at("pids/caisson-ses_1"),
			},
			have: []string{"pids"},
		},
		{
			name:  "hybrid, and our own cgroup is not in what is mounted of it",
			trees: []tree{{at("pids"), "/", []string{"pids"}}, {at("unified"), "/elsewhere", nil}},
			own:   "8:pids:/\n0::/\n",
			want: cgroupPlan{
				path: "caisson-ses_1", swap: true, dirs: []string{at("pids/caisson-ses_1"), at("unified/caisson-ses_1")},
				own: at("pids"), joined: at("pids/caisson-ses_1"),
			},
			have: []string{"pids"},
		},
		{
			name:  "v1, with SELinux",
			trees: []tree{{at("pids"), "/", []string{"seclabel", "pids"}}},
			own:   "8:pids:/\n",
			want:  cgroupPlan{path: "caisson-ses_1", swap: true, dirs: []string{at("pids/caisson-ses_1")}, own: at("pids"), joined: at("pids/caisson-ses_1")},
			have:  []string{"seclabel", "pids"},
		},
		{
			name:  "v2, in a session",
			trees: []tree{{at("v2"), "/", nil}},
			own:   "0::/user.slice/session.scope\n",
			want: cgroupPlan{
				path: "/user.slice/caisson-ses_1", swap: true, dirs: []string{at("v2/user.slice/caisson-ses_1")},
				own: at("v2/user.slice/session.scope"), joined: at("v2/user.slice/caisson-ses_1"),
			},
			have: []string{"cpuset", "cpu", "io", "memory", "pids"},
		},
		{
			name:  "v2, at the root",
			trees: []tree{{at("v2"), "/", nil}},
			own:   "0::/\n",
			want: cgroupPlan{
				path: "/caisson-ses_1", swap: true, dirs: []string{at("v2/caisson-ses_1")},
				own: at("v2"), joined: at("v2/caisson-ses_1"),
			},
			have: []string{"cpuset", "cpu", "io", "memory", "pids"},
		},
		{
			name:  "v2, in a container with a cgroup namespace",
			trees: []tree{{at("container"), "/", nil}},
			own:   "0::/\n",
			want:  cgroupPlan{path: "/caisson-ses_1", swap: true, crowded: at("container"), dirs: []string{at("container/caisson-ses_1")}},
		},
		{
			name:  "v2, in such a container whose processes were moved away from its root",
			trees: []tree{{at("moved"), "/", nil}},
			own:   "0::/init\n",
			want: cgroupPlan{
				path: "/caisson-ses_1", swap: true, dirs: []string{at("moved/caisson-ses_1")},
				own: at("moved/init"), joined: at("moved/caisson-ses_1"),
			},
			have: []string{"cpu", "memory", "pids"},
		},
		{
			name:  "outside of what is mounted",
			trees: []tree{{at("v2"), "/elsewhere", nil}},
			own:   "0::/user.slice\n",
			want:  cgroupPlan{path: "caisson-ses_1", swap: true},
		},
	}
	for _, tt := range tests {
		got, have := layOut(tt.trees, parseCgroups(tt.own), "caisson-ses_1")
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(cgroupPlan{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.have, have); diff != "" {
			t.Errorf("%s: controllers (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestNoCgroupsIsLost(t *testing.T) {
	for _, rootless := range []bool{false, true} {
		p, missing := planCgroupIn(nil, parseCgroups(""), "ses_1", rootless)
		if p.isLimited() || !strings.Contains(missing, "cpu") {
			t.Errorf("ordinary user %t: %+v, missing %q", rootless, p, missing)
		}
	}
}

func TestCgroupReadBack(t *testing.T) {
	v1 := makeTree(t, map[string]string{
		"memory.limit_in_bytes": "67108864\n", "memory.memsw.limit_in_bytes": "67108864\n", "pids.max": "64\n",
		"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "memory.max_usage_in_bytes": "67108800\n", "pids.events": "max 0\n",
	})
	v2 := makeTree(t, map[string]string{
		"memory.max": "67108864\n", "memory.swap.max": "0\n", "pids.max": "64\n", "cpu.max": "150000 100000\n",
		"memory.events": "low 0\nmax 3\noom 0\noom_kill 0\n", "pids.events": "max 4\n", "pids.peak": "64\n",
	})
	none := makeTree(t, map[string]string{"memory.max": "max", "memory.swap.max": "max", "pids.max": "max", "cpu.max": "max 100000"})
	want := sandbox.AttestedLimits{MemoryBytes: 64 << 20, PIDs: 64, MilliCPUs: 1500}
	for _, tt := range []struct {
		name     string
		c        cgroup
		want     sandbox.AttestedLimits
		swap     int64
		exceeded *limits.ExceededError
	}{
		{"v1", cgroup{memory: v1, pids: v1, cpu: v1}, want, 64 << 20, &limits.ExceededError{Kind: limits.KindMemory, Limit: 64 << 20, Used: 64 << 20}},
		{"v2", cgroup{memory: v2, pids: v2, cpu: v2, v2: true}, want, 64 << 20, &limits.ExceededError{Kind: limits.KindPIDs, Limit: 64, Used: 64}},
		{"none", cgroup{memory: none, pids: none, cpu: none, v2: true}, sandbox.AttestedLimits{}, 0, nil},
		{"zero", cgroup{}, sandbox.AttestedLimits{}, -1, nil},
	} {
		if diff := cmp.Diff(tt.want, tt.c.readLimits()); diff != "" {
			t.Errorf("%s: limits (-want +got):\n%s", tt.name, diff)
		}
		if got := tt.c.readSwap(); got != tt.swap {
			t.Errorf("%s: swap %d, want %d", tt.name, got, tt.swap)
		}
		if diff := cmp.Diff(tt.exceeded, tt.c.findExceeded()); diff != "" {
			t.Errorf("%s: exceeded (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestRemoveCgroupTouchesNothingElse(t *testing.T) {
	dir := makeTree(t, map[string]string{"caisson-ses_1/file": "", "other/file": ""})
	for _, name := range []string{"caisson-ses_1", "other"} {
		if _, err := removeCgroup(filepath.Join(dir, name), "ses_1"); err == nil {
			t.Errorf("removed %s, which is no cgroup", name)
		}
		if _, err := os.Stat(filepath.Join(dir, name, "file")); err != nil {
			t.Error(err)
		}
	}
	if was, err := removeCgroup(filepath.Join(dir, "absent", "caisson-ses_1"), "ses_1"); was || err != nil {
		t.Errorf("an absent cgroup: %v, %v", was, err)
	}
}
