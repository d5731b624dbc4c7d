package sandbox

import (
	"fmt"
	"time"
)

// ExitStatus is how a command ended: a value, never an error.
type ExitStatus struct {
	// Code is 0 to 255, or -1 where Signal is set.
	Code int `json:"code"`
	// Signal is the number of the signal that ended it, or 0.
	Signal int `json:"signal,omitempty"`
	// OOMKilled says that the kernel's counters show an out-of-memory kill
	// while it ran; it is never guessed from a status of 137.
	OOMKilled bool `json:"oom_killed,omitempty"`
	// TimedOut says that its own timeout ended it.
	TimedOut bool `json:"timed_out,omitempty"`
	// Cancelled says that the caller's context ended it.
	Cancelled bool `json:"cancelled,omitempty"`
}

// Success is an exit code of 0 that nothing forced.
func (s ExitStatus) Success() bool {
	return s == ExitStatus{}
}

// String is for people: "exit code 1", "signal 9 (timed out)".
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

// Exit is what there is to know about a command that has ended.
type Exit struct {
	Status         ExitStatus
	Stdout, Stderr Stream
	// Wall is from fork to the end of the last of its processes; CPU is user
	// plus system time of those that were waited for, and, where no other command
	// ran beside it, of its daemons too.
	Wall, CPU time.Duration
	// PeakMemory is the largest resident set of one of its processes, in
	// bytes (rusage), or 0 where the kernel does not say.
	PeakMemory int64
	// PIDsLimitHit says that the kernel refused a fork for the sandbox's pids
	// limit while the command ran, by its counters; never guessed from output.
	// In gVisor, which counts nothing, it is said only of a command that itself
	// could not be started.
	PIDsLimitHit bool
	// Full are the file systems in memory (/tmp, the home, /dev/shm) that had no
	// room left when a command that failed had ended.
	Full []string
	Kill KillReport
}

// Stream is one output stream of a command that has ended.
type Stream struct {
	// Total is the exact number of bytes that were written; SHA256 their hash, hex.
	Total  int64
	SHA256 string
	// Live is the number of bytes that went to the writer: the first ones.
	Live int64
	// Tail is the last bytes, where Total is more than Live; it never overlaps
	// the live bytes, so Total-Live-len(Tail) bytes were left out between.
	Tail []byte
}

// KillReport is the proof of a kill: what was signalled, what had to be killed,
// and what is left. All zero after a command that left nothing.
type KillReport struct {
	// Method is how processes were found: "cgroup.kill", "gid" or "subreaper".
	Method string `json:"method,omitempty"`
	// Terminated is the number of processes that got SIGTERM, Killed the
	// number that got SIGKILL.
	Terminated int `json:"terminated,omitempty"`
	Killed     int `json:"killed,omitempty"`
	// AfterExit says that processes were left when the command itself had
	// ended, and were killed.
	AfterExit bool `json:"after_exit,omitempty"`
	// Left is the number that could not be killed: 0, or the guest says so
	// and the container is killed.
	Left int `json:"left"`
	// KillTime is from the first SIGKILL to the proof that nothing is left.
	KillTime time.Duration `json:"kill_time_ns,omitempty"`
}
