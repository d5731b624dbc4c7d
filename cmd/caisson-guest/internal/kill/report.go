package kill

import (
	"time"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Report collects the proof of one command's end. It is for one goroutine.
type Report struct {
	// terminated are the processes that were listed before they got SIGTERM,
	// killed those that scans met.
	terminated, killed map[int]struct{}
	// allKilled is how many were seen to end by a SIGKILL to all.
	allKilled int
	afterExit bool
	left      int
	time      time.Duration
}

// maxReported bounds the pids that a report remembers; a chain of forks has no end.
const maxReported = 1 << 16

// addTerminated returns true for a process that was not listed before.
func (r *Report) addTerminated(pid int) bool {
	if _, ok := r.terminated[pid]; ok || len(r.terminated) == maxReported {
		return false
	}
	if r.terminated == nil {
		r.terminated = map[int]struct{}{}
	}
	r.terminated[pid] = struct{}{}
	return true
}

// addKilled returns true for a process that was not met before.
func (r *Report) addKilled(pid int) bool {
	if _, ok := r.killed[pid]; ok || len(r.killed) == maxReported {
		return !ok
	}
	if r.killed == nil {
		r.killed = map[int]struct{}{}
	}
	r.killed[pid] = struct{}{}
	return true
}

// killCount returns how many processes were killed.
func (r *Report) killCount() int { return len(r.killed) + r.allKilled }

func (r *Report) setDuration(start time.Time) {
	if r.killCount() > 0 {
		r.time += time.Since(start)
	}
}

// Left is the number of processes that could not be killed.
func (r *Report) Left() int { return r.left }

// Unreaped records that the command's own process was killed but did not end.
func (r *Report) Unreaped() { r.left = max(r.left, 1) }

// AfterExit records that the processes that were killed had been left when the
// command itself had ended.
func (r *Report) AfterExit() { r.afterExit = r.killCount() > 0 || r.left > 0 }

// Wire returns the report. The method is set if anything was signalled.
func (r *Report) Wire(method string) wire.Kill {
	k := wire.Kill{
		Terminated: len(r.terminated), Killed: r.killCount(),
		AfterExit: r.afterExit, Left: r.left, KillTime: r.time,
	}
	if k.Terminated > 0 || k.Killed > 0 || k.Left > 0 {
		k.Method = method
	}
	return k
}
