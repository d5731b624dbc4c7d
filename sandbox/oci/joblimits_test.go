package oci

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
)

// What a process sees in jobs of several kinds.
func TestJobLimits(t *testing.T) {
	root := makeTree(t, map[string]string{
		// Docker on v1 mounts the container's own cgroup of each controller.
		"v1/memory/memory.limit_in_bytes": "536870912\n", "v1/memory/memory.usage_in_bytes": "209715200\n",
		"v1/memory/memory.stat": "active_file 1\ntotal_active_file 20971520\ntotal_inactive_file 83886080\n",
		"v1/pids/pids.max":      "200\n", "v1/pids/pids.current": "17\n",
		"v1/cpu/cpu.cfs_quota_us": "150000\n", "v1/cpu/cpu.cfs_period_us": "100000\n",
		// With a cgroup namespace, v2 shows the container's own as the root.
		"v2/cgroup.controllers": "cpu memory pids\n", "v2/memory.max": "1073741824\n", "v2/memory.current": "314572800\n",
		"v2/memory.stat": "anon 5\nactive_file 20971520\ninactive_file 73400320\nslab_reclaimable 10485760\n",
		"v2/pids.max":    "max\n", "v2/pids.current": "17\n", "v2/cpu.max": "max 100000\n", "v2/memory.oom.group": "1\n",
		// On a host, the cgroup around the job may have less than its own.
		"host/cgroup.controllers": "cpu memory pids\n",
		"host/ci/memory.max":      "1073741824\n", "host/ci/memory.current": "1040187392\n", "host/ci/pids.max": "1000\n", "host/ci/pids.current": "980\n",
		"host/ci/job/memory.max": "2147483648\n", "host/ci/job/memory.current": "104857600\n",
		"host/ci/job/pids.max": "300\n", "host/ci/job/pids.current": "20\n", "host/ci/job/cpu.max": "200000 100000\n",
		"host/memory.max": "1", // not one of the process's, if another tree is mounted at host/ci
		// The limits of v1, beside a v2 without controllers.
		"unified/cgroup.procs": "",
		"none/pids/x":          "", "none/memory/memory.limit_in_bytes": "9223372036854771712\n", "none/pids/pids.max": "max\n", "none/pids/pids.current": "5\n",
	})
	at := func(p string) string { return filepath.Join(root, p) }
	v1 := func(dir, of string) []tree {
		return []tree{
			{at(dir + "/memory"), of, []string{"memory"}},
			{at(dir + "/pids"), of, []string{"pids"}},
			{at(dir + "/cpu"), of, []string{"cpu", "cpuacct"}},
		}
	}
	machine := admission.Memory{Total: 8 << 30, Available: 6 << 30}
	for _, tt := range []struct {
		name    string
		trees   []tree
		groups  string
		limits  sandbox.AttestedLimits
		memory  admission.Memory
		threads [2]int64 // limit and use
		lost    string
	}{
		{
			name: "v1 in a container", trees: v1("v1", "/docker/0123"), groups: "4:memory:/docker/0123\n8:pids:/docker/0123\n1:cpu,cpuacct:/docker/0123\n",
			limits: sandbox.AttestedLimits{MemoryBytes: 512 << 20, PIDs: 200, MilliCPUs: 1500},
			memory: admission.Memory{Total: 512 << 20, Available: (512 - 100) << 20}, threads: [2]int64{200, 17},
			lost: "Limits of memory and CPU time: the job's own limits hold for all its processes together, not for one sandbox.",
		},
		{
			name: "hybrid", trees: append(v1("v1", "/"), tree{at("unified"), "/", nil}), groups: "4:memory:/\n8:pids:/\n1:cpu,cpuacct:/\n0::/\n",
			limits: sandbox.AttestedLimits{MemoryBytes: 512 << 20, PIDs: 200, MilliCPUs: 1500},
			memory: admission.Memory{Total: 512 << 20, Available: (512 - 100) << 20}, threads: [2]int64{200, 17},
			lost: "Limits of memory and CPU time: the job's own limits hold for all its processes together, not for one sandbox.",
		},
		{
			name: "v1, and the path is the host's", trees: v1("v1", "/"), groups: "4:memory:/docker/0123\n8:pids:/docker/0123\n1:cpu,cpuacct:/docker/0123\n",
			limits: sandbox.AttestedLimits{MemoryBytes: 512 << 20, PIDs: 200, MilliCPUs: 1500},
			memory: admission.Memory{Total: 512 << 20, Available: (512 - 100) << 20}, threads: [2]int64{200, 17},
			lost: "Limits of memory and CPU time: the job's own limits hold for all its processes together, not for one sandbox.",
		},
		{
			name: "v2 in a container", trees: []tree{{at("v2"), "/", nil}}, groups: "0::/\n",
			limits: sandbox.AttestedLimits{MemoryBytes: 1 << 30},
			memory: admission.Memory{Total: 1 << 30, Available: (1024 - 200) << 20},
			lost: "Limits of memory and CPU time: the job has only a limit of memory, which holds for all its processes together, not for one sandbox.\n" +
				"The end of only one sandbox if memory runs out: the kernel then ends all processes of the job (memory.oom.group).",
		},
		{
			name: "v2 in a container, from outside of what it shows", trees: []tree{{at("v2"), "/", nil}}, groups: "0::/../..\n",
			limits: sandbox.AttestedLimits{MemoryBytes: 1 << 30},
			memory: admission.Memory{Total: 1 << 30, Available: (1024 - 200) << 20},
			lost: "Limits of memory and CPU time: the job has only a limit of memory, which holds for all its processes together, not for one sandbox.\n" +
				"The end of only one sandbox if memory runs out: the kernel then ends all processes of the job (memory.oom.group).",
		},
		{
			name: "v2 on a host", trees: []tree{{at("host/ci"), "/ci", nil}}, groups: "0::/ci/job\n",
			limits: sandbox.AttestedLimits{MemoryBytes: 1 << 30, PIDs: 300, MilliCPUs: 2000},
			memory: admission.Memory{Total: 1 << 30, Available: 32 << 20}, threads: [2]int64{1000, 980},
			lost: "Limits of memory and CPU time: the job's own limits hold for all its processes together, not for one sandbox.",
		},
		{
			name: "no limits", trees: v1("none", "/"), groups: "4:memory:/\n8:pids:/\n1:cpu,cpuacct:/\n", memory: machine,
			lost: "Limits of memory and CPU time: the job has none.",
		},
		{name: "no cgroups", memory: machine, lost: "Limits of memory and CPU time: the job has none."},
	} {
		j := jobIn(tt.trees, parseCgroups(tt.groups))
		if diff := cmp.Diff(tt.limits, j.readLimits()); diff != "" {
			t.Errorf("%s: limits (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.memory, j.limitMemory(machine)); diff != "" {
			t.Errorf("%s: memory (-want +got):\n%s", tt.name, diff)
		}
		if got := j.readThreads(); [2]int64{got.Limit, got.Used} != tt.threads {
			t.Errorf("%s: threads %+v, want %v", tt.name, got, tt.threads)
		}
		if got := strings.Join(j.listLost(), "\n"); got != tt.lost {
			t.Errorf("%s: lost %q, want %q", tt.name, got, tt.lost)
		}
	}
	if _, _, err := readCgroups("self"); err != nil {
		t.Error(err)
	}
}

func TestFitMemory(t *testing.T) {
	j := job{levels: []cgroup{{cpu: makeTree(t, map[string]string{"cpu.max": "150000 100000"}), v2: true}}}
	for _, tt := range []struct {
		name              string
		available, memory int64
		err               string
	}{
		{name: "all", available: 16 << 30, memory: 2 << 30},
		{name: "a part", available: 512<<20 + 5000, memory: 448 << 20},
		{name: "the least", available: 128 << 20, memory: 64 << 20},
		{
			name: "too little", available: 128<<20 - 1,
			err: "a sandbox needs 128.0 MiB of memory, and of the 512.0 MiB that this job may use, 128.0 MiB are free: give the job more memory",
		},
		{name: "none", err: "512.0 MiB that this job may use, 0 B are free"},
	} {
		r := limits.DefaultResources()
		err := j.fitMemory(&r, admission.Memory{Total: 512 << 20, Available: tt.available})
		if tt.err != "" {
			if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		want := limits.DefaultResources()
		want.MemoryBytes, want.MilliCPUs = tt.memory, 1500
		if diff := cmp.Diff(want, r); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

func TestFitPIDs(t *testing.T) {
	more := func(spec *sandbox.Spec) { // four users
		spec.Service, spec.Homes = &sandbox.Service{}, []int64{0, 0}
	}
	for _, tt := range []struct {
		name   string
		change func(*sandbox.Spec)
		spare  int64 // threads besides those of an idle sandbox
		pids   int64 // 0 if there are too few
	}{
		{name: "all", spare: 1100, pids: 256},
		{name: "a part", spare: 403, pids: 100},
		{name: "the least", spare: 4 * minPIDs, pids: minPIDs},
		{name: "too little", spare: 4*minPIDs - 1},
		// The limit inside holds for each user.
		{name: "more users", change: more, spare: 500, pids: 31},
		{name: "more users, too little", change: more, spare: 16*minPIDs - 1},
		{name: "the guest's user", change: func(spec *sandbox.Spec) { spec.User = sandbox.UserRoot }, spare: 4 * minPIDs, pids: minPIDs + guestThreads},
	} {
		spec := sandbox.Spec{Setup: sandbox.Setup{Resources: limits.DefaultResources()}}
		if tt.change != nil {
			tt.change(&spec)
		}
		got, err := fitPIDs(spec, idleThreads(served{7, 9}, kernelProcessors(spec.Resources.MilliCPUs))+tt.spare, served{7, 9})
		if got != tt.pids || (err != nil) != (tt.pids == 0) || err != nil && !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("%s: %d processes, %v", tt.name, got, err)
		}
		// What is asked for leads to the spec's limit and to the least.
		j := job{}.forAdmission(spec)
		most, err := fitPIDs(spec, j.MostThreads, usualMounts)
		least, leastErr := fitPIDs(spec, j.LeastThreads, usualMounts)
		if err != nil || leastErr != nil || most != spec.Resources.PIDs || least != minPIDs && spec.User != sandbox.UserRoot {
			t.Errorf("%s: from %d, %v, to %d processes, %v", tt.name, least, leastErr, most, err)
		}
	}
	for _, tt := range []struct {
		processors int
		each       int64
	}{{1, 3}, {2, 3}, {3, 4}, {64, 5}} {
		none := idleThreads(served{}, tt.processors)
		if dir, file := idleThreads(served{dirs: 1}, tt.processors)-none, idleThreads(served{files: 1}, tt.processors)-none; dir != tt.each || file != 1 {
			t.Errorf("with %d processors, %d threads for a directory and %d for a file", tt.processors, dir, file)
		}
	}
	spec := sandbox.Spec{Setup: sandbox.Setup{Resources: limits.DefaultResources()}}
	spec.Resources.MilliCPUs = 1000
	few := job{}.forAdmission(spec)
	spec.Mounts, spec.Workspace.Repositories, spec.Workspace.Privileged = make([]sandbox.Mount, 3), make([]string, 4), make([]string, 5)
	if many := (job{}).forAdmission(spec); many.LeastThreads-few.LeastThreads != 7*3+5 || many.MostThreads-few.MostThreads != 7*3+5 {
		t.Errorf("without mounts %+v, with mounts %+v", few, many)
	}
}

func TestJobExceeded(t *testing.T) {
	dir := makeTree(t, map[string]string{
		"memory.limit_in_bytes": "536870912", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "pids.events": "max 7\n", "pids.max": "200",
		"v2/memory.max": "max", "v2/memory.events": "oom 9\noom_kill 2\n", "v2/pids.events": "max 7\n", "v2/pids.max": "200",
	})
	write := func(name, text string) { must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) }
	machine := admission.Memory{Total: 8 << 30}
	v1 := cgroup{memory: dir, pids: dir}
	j := job{own: []cgroup{v1}, levels: []cgroup{v1}}
	since := j.readCounters()
	if since != (jobCounters{kills: 2, forks: 7}) {
		t.Fatalf("counters %+v", since)
	}
	if e := j.findExceeded(since, machine); e != nil {
		t.Errorf("counters that did not change: %v", e)
	}
	write("pids.events", "max 8\n")
	want := &limits.ExceededError{Kind: limits.KindPIDs, Limit: 200, Used: 200, Job: true}
	if diff := cmp.Diff(want, j.findExceeded(since, machine)); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
	write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
	want = &limits.ExceededError{Kind: limits.KindMemory, Limit: 512 << 20, Used: 512 << 20, Job: true}
	if diff := cmp.Diff(want, j.findExceeded(since, j.limitMemory(machine))); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if got := want.Error(); got != "limit memory of the job reached: used 536870912 of 536870912" {
		t.Error(got)
	}
	v2 := cgroup{memory: filepath.Join(dir, "v2"), pids: filepath.Join(dir, "v2"), v2: true}
	j = job{own: []cgroup{v2}, levels: []cgroup{v2}}
	since = j.readCounters()
	write("v2/memory.events", "oom 9\noom_kill 3\n")
	// Nothing limits the job, so that it was the machine that had no memory.
	want = &limits.ExceededError{Kind: limits.KindMemory, Limit: 8 << 30, Used: 8 << 30}
	if diff := cmp.Diff(want, j.findExceeded(since, j.limitMemory(machine))); diff != "" {
		t.Errorf("memory of the machine (-want +got):\n%s", diff)
	}
}

func TestKernelProcessors(t *testing.T) {
	all := runtime.NumCPU()
	for milli, want := range map[int64]int{1: min(2, all), 2000: min(2, all), 2001: min(3, all), 1 << 20: all} {
		if got := kernelProcessors(milli); got != want {
			t.Errorf("%d processors for a limit of %d, want %d", got, milli, want)
		}
	}
}
