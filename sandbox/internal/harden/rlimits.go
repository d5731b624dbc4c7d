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
// the program (docs/design/limits.md#core-files). There is no nproc limit because it counts
// a UID across containers; the pids limit bounds processes.
func Rlimits(r limits.Resources) []Rlimit {
	return []Rlimit{
		{Name: "core", Soft: 1, Hard: 1},
		{Name: "fsize", Soft: maxFileBytes, Hard: maxFileBytes},
		{Name: "memlock", Soft: 64 << 10, Hard: 64 << 10},
		{Name: "msgqueue", Soft: 64 << 10, Hard: 64 << 10},
		{Name: "nofile", Soft: r.OpenFiles, Hard: r.OpenFiles},
		{Name: "stack", Soft: 8 << 20, Hard: 64 << 20},
	}
}

// maxFileBytes is the size of the largest file that a process may make. It is
// more than a build needs, and bounds a sparse file that a later copy would
// write out in full. The runner bounds the sum of all files.
const maxFileBytes = 64 << 30
