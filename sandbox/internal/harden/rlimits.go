package harden

import "github.com/caisson-run/caisson/limits"

// Rlimit is one resource limit of every process in a container.
type Rlimit struct {
	Name       string // without RLIMIT_, lower case: nofile, core, …
	Soft, Hard int64
}

// Rlimits returns the process limits of a session. The core limit is
// 1 byte: the one value at which the kernel neither writes a core file nor runs
// the program of a core pattern that is a pipe, as root on the host; at 0 it
// runs it (docs/decisions/0100). There is no nproc limit because it counts a uid
// across containers; the pids limit bounds processes.
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

// maxFileBytes is the largest file that a process may make: more than a build
// needs, and less than a sparse file by which a later copy would fill a disk. How
// much may be written in all is watched by the runner.
const maxFileBytes = 64 << 30
