package sandbox

import (
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// ExitStatus describes how a command ended. It is a value, never an error.
type ExitStatus struct {
	// Code is 0 to 255, or -1 if Signal is set.
	Code int `json:"code"`
	// Signal is the number of the signal that ended the command, or 0.
	Signal int `json:"signal,omitempty"`
	// OOMKilled reports whether the kernel's counters show an out-of-memory
	// kill while the command ran. It is never inferred from a status of 137.
	OOMKilled bool `json:"oom_killed,omitempty"`
	// TimedOut reports whether the command's own timeout ended it.
	TimedOut bool `json:"timed_out,omitempty"`
	// Cancelled reports whether the caller's context ended the command.
	Cancelled bool `json:"cancelled,omitempty"`
}

// Success reports whether the exit code is 0 and nothing forced the end.
func (s ExitStatus) Success() bool {
	return s == ExitStatus{}
}

// String returns the status for messages, such as "exit code 1" or "signal 9
// (timed out)".
func (s ExitStatus) String() string {
	text := fmt.Sprintf("exit code %d", s.Code)
	if s.Signal != 0 {
		text = fmt.Sprintf("signal %d", s.Signal)
	}
	for _, f := range []struct {
		set  bool
		text string
	}{{s.OOMKilled, "out of memory"}, {s.TimedOut, "timed out"}, {s.Cancelled, "cancelled"}} {
		if f.set {
			text += " (" + f.text + ")"
		}
	}
	return text
}

// Exit is the result of a command.
type Exit struct {
	Status         ExitStatus
	Stdout, Stderr Stream
	// Wall is the time from the fork to the end of the last process of the
	// command. CPU is the user and system time of the processes that were
	// waited for. If no other command ran meanwhile, it includes the daemons of
	// the command.
	Wall, CPU time.Duration
	// PeakMemory is the largest resident set of one of its processes, in bytes
	// (rusage), or 0 if the kernel does not report it.
	PeakMemory int64
	// PIDsLimitHit reports whether, by the kernel's counters, a fork failed
	// because of the sandbox's pids limit while the command ran. It is never
	// inferred from output. gVisor has no such counter, so there it is set only
	// if the command itself could not be started.
	PIDsLimitHit bool
	// Full lists the in-memory file systems (/tmp, the home directory,
	// /dev/shm) that had no space left at the end of a command that failed.
	Full []string
	// Exceeded is set if the command was killed because it exceeded its
	// [Command].MaxTasks (limits.KindPIDs) or MaxMemory (limits.KindMemory).
	Exceeded *limits.ExceededError
	Kill     KillReport
}

// Stream is one output stream of a command that has ended.
type Stream struct {
	// Total is the exact number of bytes that were written, and SHA256 their
	// hash in hex.
	Total  int64
	SHA256 string
	// Live is the number of bytes that the writer received: the first ones.
	Live int64
	// Tail is the last bytes if Total is more than Live. It never overlaps the
	// live bytes: Total-Live-len(Tail) bytes between them were left out.
	Tail []byte
}

// KillReport describes how the processes of a command were killed, and which
// are left. It is zero after a command that left no processes.
type KillReport struct {
	// Method is the way in which processes were found: "cgroup.kill", "gid" or
	// "subreaper".
	Method string `json:"method,omitempty"`
	// Terminated is the number of processes that got SIGTERM, Killed the number
	// of those that got SIGKILL.
	Terminated int `json:"terminated,omitempty"`
	Killed     int `json:"killed,omitempty"`
	// AfterExit reports whether processes were left when the command itself had
	// ended, and were killed.
	AfterExit bool `json:"after_exit,omitempty"`
	// Left is the number of processes that could not be killed. If it is not 0,
	// the container is killed.
	Left int `json:"left"`
	// KillTime is the time from the first SIGKILL until it was verified that no
	// process is left.
	KillTime time.Duration `json:"kill_time_ns,omitempty"`
}
