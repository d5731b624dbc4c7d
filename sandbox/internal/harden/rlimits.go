package harden

import "github.com/caisson-run/caisson/limits"

// Rlimit is one resource limit of every process in a container.
type Rlimit struct {
	Name       string // in lower case and without RLIMIT_, such as "nofile"
	Soft, Hard int64
}

// Rlimits returns the process limits of a session. The core limit is 1 byte.
// Only with that value does the kernel neither write a core file nor run the
// program of a core pattern that is a pipe, as root on the host. With 0 it runs
// the program (docs/design/guest.md#core-files).
//
// With the host's kernel there is no nproc limit, because it counts a UID
// across containers; the pids limit bounds processes. A kernel of the
// container's own counts one UID of one container, so that reaching the limit
// is an error of fork and not the container's death.
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

// HostPIDs returns the host's limit of processes for a container's limit.
// gVisor, which has a kernel of its own, needs two threads of the host for each
// of the container's and 50 to 60 for sentry and gofer (measured,
// docs/design/killing.md#processes-memory-and-cpu), with room for what they need
// under load, and dies without. The limit itself then holds inside, by
// [Rlimits], for each identity of commands; two of them can reach it.
func HostPIDs(pids int64, ownKernel bool) int64 {
	if ownKernel {
		return 4*pids + 384
	}
	return pids
}

// OOMScore makes the kernel choose a container before Caisson if the host itself
// runs out of memory.
const OOMScore = 500

// maxFileBytes is the size of the largest file that a process may make. It is
// more than a build needs, and bounds a sparse file that a later copy would
// write out in full. The runner bounds the sum of all files.
const maxFileBytes = 64 << 30
