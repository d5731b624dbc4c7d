package oci

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
)

// job is the cgroups of this process. Sandboxes of sandbox.IsolationProcess are
// in them too, so their limits hold for Caisson, its sandboxes and everything
// else in the same container job, together.
type job struct {
	// own has this process's cgroup in each hierarchy, and levels also those
	// around it, as far as they are visible. In a container, the mounted root
	// may be the job's own.
	own, levels []cgroup
}

func jobIn(trees []tree, groups map[string]string) job {
	var j job
	for _, t := range trees {
		at, ok := t.dirOf(groups)
		if _, err := os.Stat(at); !ok || err != nil || !isWithin(at, t.mount) {
			at = t.mount // without a cgroup namespace, the path may be the host's
		}
		j.own = append(j.own, t.cgroupAt(at))
		for ; isWithin(at, t.mount); at = filepath.Dir(at) {
			j.levels = append(j.levels, t.cgroupAt(at))
		}
	}
	return j
}

func isWithin(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// cgroupAt returns the cgroup in dir, with the controllers of this hierarchy.
func (t tree) cgroupAt(dir string) cgroup {
	if t.isV2() {
		return cgroup{memory: dir, pids: dir, cpu: dir, v2: true}
	}
	at := func(controller string) string {
		if slices.Contains(t.controllers, controller) {
			return dir
		}
		return ""
	}
	return cgroup{memory: at("memory"), pids: at("pids"), cpu: at("cpu")}
}

// readLimits returns the smallest limits of all levels; 0 means none.
func (j job) readLimits() (l sandbox.AttestedLimits) {
	for _, c := range j.levels {
		at := c.readLimits()
		l.MemoryBytes = lowerLimit(l.MemoryBytes, at.MemoryBytes)
		l.PIDs = lowerLimit(l.PIDs, at.PIDs)
		l.MilliCPUs = lowerLimit(l.MilliCPUs, at.MilliCPUs)
	}
	return l
}

// lowerLimit returns the lower of two limits, of which 0 is none.
func lowerLimit(a, b int64) int64 {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// limitMemory returns the machine's memory, or what the job has of it.
func (j job) limitMemory(m admission.Memory) admission.Memory {
	for _, c := range j.levels {
		if limit := c.readLimits().MemoryBytes; limit > 0 {
			m.Total, m.Available = min(m.Total, limit), max(min(m.Available, limit-c.readUse()), 0)
		}
	}
	return m
}

// readUse returns the memory that the kernel can't take back: without the files
// that it caches.
func (c cgroup) readUse() int64 {
	use, prefix := "memory.usage_in_bytes", "total_" // which includes the cgroups below
	if c.v2 {
		use, prefix = "memory.current", ""
	}
	used, stat := readNumber(c.memory, use), readText(c.memory, "memory.stat")
	for _, name := range []string{"active_file", "inactive_file", "slab_reclaimable"} {
		used -= readCounter(stat, prefix+name)
	}
	return max(used, 0)
}

// readThreads returns the level that has the least room for processes and
// threads.
func (j job) readThreads() admission.Threads {
	var least admission.Threads
	for _, c := range j.levels {
		limit := readNumber(c.pids, "pids.max")
		used := readNumber(c.pids, "pids.current")
		if limit > 0 && (least.Limit == 0 || limit-used < least.Limit-least.Used) {
			least = admission.Threads{Limit: limit, Used: used, Idle: idleThreads(fewestMounts, 1)}
		}
	}
	return least
}

// Threads of the host, measured on 2 processors with up to 16 mounts.
const (
	// kernelThreads are the threads of gVisor's kernel and file server and of
	// the guest, without mounts. Each processor adds processorThreads.
	kernelThreads    = 30
	processorThreads = 2
	// processThreads are the threads for each process or thread in the sandbox:
	// two of its own, one of gVisor's kernel while it runs, and one for a while
	// when it begins.
	processThreads = 4
)

// served counts what gVisor's file server serves.
type served struct{ dirs, files int }

// usualMounts are a session's mounts with the image host, besides the spec's.
// fewestMounts are the root, the home, the workspace, the guest and its nonce.
var usualMounts, fewestMounts = served{dirs: 8, files: 8}, served{dirs: 3, files: 2}

func (s *served) add(isDir bool) {
	if isDir {
		s.dirs++
	} else {
		s.files++
	}
}

// kernelProcessors returns how many processors gVisor's kernel uses if commands
// have this limit. With one, it would be slower (systrap, neverEnableFastPath).
func kernelProcessors(milliCPUs int64) int {
	return min(max(int((milliCPUs+999)/1000), 2), runtime.NumCPU())
}

// idleThreads returns how many threads of the host a sandbox has. For each
// mount, the file server has one thread, and for a directory two to four more,
// for requests (lisafs, maxChannels).
func idleThreads(m served, processors int) int64 {
	return int64(kernelThreads + processorThreads*processors + m.files + m.dirs*(1+min(max(processors, 2), 4)))
}

// minPIDs is the smallest limit of processes that a job's own limit may lead to.
// It holds for the guest's user as well, and the guest has guestThreads.
const (
	minPIDs      = guestThreads + 1
	guestThreads = 27
)

// forAdmission describes a sandbox that shares the job's limits. The limit of
// processes inside holds for each identity.
func (j job) forAdmission(spec sandbox.Spec) *admission.Job {
	mounts := usualMounts
	mounts.dirs += len(spec.Mounts) + len(spec.Workspace.Repositories)
	mounts.files += len(spec.Workspace.Privileged)
	idle := idleThreads(mounts, kernelProcessors(spec.Resources.MilliCPUs))
	each := processThreads * countIdentities(spec)
	return &admission.Job{
		Read: func(machine admission.Memory) (admission.Memory, admission.Threads) {
			return j.limitMemory(machine), j.readThreads()
		},
		LeastThreads: idle + each*minPIDs,
		MostThreads:  idle + each*spec.Resources.PIDs,
	}
}

func countIdentities(spec sandbox.Spec) int64 {
	n := 1 + int64(len(spec.Homes))
	if spec.Service != nil {
		n++
	}
	return n
}

// memoryReserve is the part of a job's memory that is left for gVisor's kernel
// and file server, and for what Caisson itself still needs.
const memoryReserve = 64 << 20

// fitMemory lowers a sandbox's memory and processors to what the job has.
// memory is the job's.
func (j job) fitMemory(r *limits.Resources, memory admission.Memory) error {
	free := (memory.Available - memoryReserve) &^ (1<<20 - 1) // whole MiB
	if free < limits.MinMemoryBytes {
		return fmt.Errorf("%w: a sandbox needs %s of memory, and of the %s that this job may use, %s are free: give the job more memory (such as docker run --memory)",
			sandbox.ErrUnavailable, limits.FormatSize(limits.MinMemoryBytes+memoryReserve), limits.FormatSize(memory.Total), limits.FormatSize(memory.Available))
	}
	r.MemoryBytes = min(r.MemoryBytes, free)
	r.MilliCPUs = lowerLimit(r.MilliCPUs, j.readLimits().MilliCPUs)
	return nil
}

// fitPIDs returns the limit of processes in a sandbox with these mounts that may
// use this many threads of the host.
func fitPIDs(spec sandbox.Spec, threads int64, mounts served) (int64, error) {
	each, idle := processThreads*countIdentities(spec), idleThreads(mounts, kernelProcessors(spec.Resources.MilliCPUs))
	n := (threads - idle) / each
	if n < minPIDs {
		return 0, fmt.Errorf("%w: a sandbox with %d mounts needs %d processes and threads, and this job has only %d for it: raise the job's limit (such as docker run --pids-limit)",
			sandbox.ErrUnavailable, mounts.dirs+mounts.files, idle+each*minPIDs, threads)
	}
	if spec.User == sandbox.UserRoot { // commands have the guest's user
		n += guestThreads
	}
	return min(n, spec.Resources.PIDs), nil
}

// listLost names what the job's limits can't do for one sandbox.
func (j job) listLost() []string {
	l := j.readLimits()
	lost := "Limits of memory and CPU time: "
	const together = "for all its processes together, not for one sandbox."
	switch {
	case l.MemoryBytes > 0 && l.MilliCPUs > 0:
		lost += "the job's own limits hold " + together
	case l.MemoryBytes > 0:
		lost += "the job has only a limit of memory, which holds " + together
	case l.MilliCPUs > 0:
		lost += "the job has only a limit of CPU time, which holds " + together
	default:
		lost += "the job has none."
	}
	if slices.ContainsFunc(j.levels, func(c cgroup) bool { return c.v2 && readNumber(c.memory, "memory.oom.group") == 1 }) {
		return []string{lost, "The end of only one sandbox if memory runs out: the kernel then ends all processes of the job (memory.oom.group)."}
	}
	return []string{lost}
}

// jobCounters are the kernel's counters of what the job's limits did.
type jobCounters struct {
	kills int64 // processes killed because memory ran out
	forks int64 // forks refused because there were too many processes
}

func (j job) readCounters() (n jobCounters) {
	for _, c := range j.own {
		n.kills += c.readKills()
		n.forks += c.readRefusedForks()
	}
	return n
}

// findExceeded returns the limit that the job has reached since the counters
// were read, or nil. memory is the job's.
func (j job) findExceeded(since jobCounters, memory admission.Memory) *limits.ExceededError {
	now, l := j.readCounters(), j.readLimits()
	switch {
	case now.kills > since.kills:
		// Without a visible limit, it was the machine's or that of a cgroup
		// around the job.
		return &limits.ExceededError{Kind: limits.KindMemory, Limit: memory.Total, Used: memory.Total, Job: l.MemoryBytes > 0}
	case now.forks > since.forks:
		most := cmp.Or(l.PIDs, j.readThreads().Used)
		return &limits.ExceededError{Kind: limits.KindPIDs, Limit: most, Used: most, Job: true}
	}
	return nil
}

// planLimits plans a container's cgroup. Without one, a sandbox without
// namespaces has this job's limits. lost names what is missing.
func (b *Backend) planLimits(session string, isolation sandbox.Isolation) (_ cgroupPlan, _ *job, lost []string) {
	plan, lost := planCgroup(session, b.rootless, b.traits)
	if isolation != sandbox.IsolationProcess || plan.isLimited() {
		return plan, nil, lost
	}
	trees, own, err := readCgroups("self")
	if err != nil {
		return plan, nil, lost // which has the reason
	}
	j := jobIn(trees, own)
	return plan, &j, j.listLost()
}

// fitMemory lowers the container's memory and processors to what the job has.
func (c *container) fitMemory() error {
	if c.job == nil {
		return nil
	}
	machine, err := admission.ReadMemory()
	if err != nil {
		return err
	}
	return c.job.fitMemory(&c.prep.Spec.Resources, c.job.limitMemory(machine))
}

// fitPIDs lowers the container's limit of processes to what the job has. The
// plan must have all mounts.
func (c *container) fitPIDs() (err error) {
	if c.prep.Threads == 0 {
		return nil
	}
	p := c.plan
	mounts := served{dirs: 1, files: len(p.files)} // the root and the files of every container
	for _, b := range p.imageBinds() {
		mounts.add(b.IsDir)
	}
	for _, b := range slices.Concat(p.workspace, p.further) {
		mounts.add(b.Dir)
	}
	r := &c.prep.Spec.Resources
	r.PIDs, err = fitPIDs(c.prep.Spec, c.prep.Threads, mounts)
	c.plan.resources = *r
	return err
}

// exceededJob returns the limit of the job that was reached since the container
// was to be made, or nil.
func (c *container) exceededJob() *limits.ExceededError {
	if c.job == nil {
		return nil
	}
	machine, err := admission.ReadMemory()
	if err != nil {
		return nil
	}
	return c.job.findExceeded(c.before, c.job.limitMemory(machine))
}
