package harden

import "github.com/caisson-run/caisson/limits"

// Rlimit is a resource limit for every process in a container.
type Rlimit struct {
	Name       string // in lower case and without RLIMIT_, such as "nofile"
	Soft, Hard int64
}

// Rlimits returns the process limits of a session. The core limit is 1 byte:
// with 0, the kernel would still run a core pattern that is a pipe, as root on
// the host (docs/design/guest.md#core-files).
//
// The host's kernel gets no nproc limit, because it counts a UID across
// containers; the pids limit bounds processes. A container's own kernel counts
// a UID in one container, so that reaching the limit fails a fork instead of
// killing the container.
func Rlimits(r limits.Resources, ownKernel bool) []Rlimit {
	list := []Rlimit{
		{Name: "core", Soft: 1, Hard: 1},
		{Name: "fsize", Soft: maxFileBytes, Hard: maxFileBytes},
		{Name: "memlock", Soft: 64 << 10, Hard: 64 << 10},
		{Name: "msgqueue", Soft: 64 << 10, Hard: 64 << 10},
		{Name: "nofile", Soft: r.OpenFiles, Hard: r.OpenFiles},
		{Name: "stack", Soft: 8 << 20, Hard: 64 << 20},
	}
	if ownKernel {
		list = append(list, Rlimit{Name: "nproc", Soft: r.PIDs, Hard: r.PIDs})
	}
	return list
}

// HostPIDs returns the host's limit of processes for a container's. For each of
// the container's threads gVisor needs two on the host, plus 50 to 60 for
// sentry and gofer (measured, docs/design/killing.md#processes-memory-and-cpu)
// and more under load, and dies without them. The container's limit then
// applies inside, by [Rlimits], to each identity; two of them can reach it.
func HostPIDs(pids int64, ownKernel bool) int64 {
	if ownKernel {
		return 4*pids + 384
	}
	return pids
}

// OOMScore makes the kernel choose a container before Caisson if the host runs
// out of memory.
const OOMScore = 500

// maxFileBytes bounds the size of a file. It is more than a build needs, and
// bounds a sparse file that a later copy would write out in full. The runner
// bounds the sum of all files.
const maxFileBytes = 64 << 30
