package harden

import "github.com/caisson-run/caisson/limits"

// Rlimit is one resource limit of every process in a container.
type Rlimit struct {
	Name       string // without RLIMIT_, lower case: nofile, core, …
	Soft, Hard int64
}

// Rlimits returns the process limits of a session. There is no core limit
// above 0 because a kernel core pattern that is a pipe runs on the host, and
// no nproc limit because it counts a uid across containers; the pids limit
// bounds processes.
func Rlimits(r limits.Resources) []Rlimit {
	return []Rlimit{
		{Name: "core"},
		{Name: "memlock", Soft: 64 << 10, Hard: 64 << 10},
		{Name: "msgqueue", Soft: 64 << 10, Hard: 64 << 10},
		{Name: "nofile", Soft: r.OpenFiles, Hard: r.OpenFiles},
		{Name: "stack", Soft: 8 << 20, Hard: 64 << 20},
	}
}
