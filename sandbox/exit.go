package sandbox

import (
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// ExitStatus describes how a command ended. It is a value, never an error. Records embed it.
type ExitStatus struct {
	// Code is 0 to 255, or -1 if a signal ended the command or it did not run.
	Code int `json:"exit_code"`
	// Signal is the number of the signal that ended the command, or 0.
	Signal int `json:"signal,omitempty"`
	// TimedOut reports whether the command's own timeout ended it.
	TimedOut bool `json:"timed_out,omitempty"`
	// Cancelled reports whether the caller's context ended the command.
	Cancelled bool `json:"cancelled,omitempty"`
	// OOMKilled reports whether the kernel's counters show an out-of-memory
	// kill while the command ran. It is never inferred from a status of 137.
	OOMKilled bool `json:"oom_killed,omitempty"`
}

// Success reports whether the exit code is 0 and nothing forced the end.
func (s ExitStatus) Success() bool {
	return s == ExitStatus{}
}

// Cause returns why the command was ended: "timed out", "out of memory" or "cancelled".
// It is "" if the command ended by itself.
func (s ExitStatus) Cause() string {
	switch {
	case s.TimedOut:
		return "timed out"
	case s.OOMKilled:
		return "out of memory"
	case s.Cancelled:
		return "cancelled"
	}
	return ""
}

// String returns the exit code or the signal, and the cause: "exit code 1", or
// "signal 15 (SIGTERM), timed out".
func (s ExitStatus) String() string {
	text := s.exitText()
	if cause := s.Cause(); cause != "" {
		text += ", " + cause
	}
	return text
}

// exitText returns "exit code 3", "signal 9 (SIGKILL)", or the number alone of a signal
// without a name.
func (s ExitStatus) exitText() string {
	name, named := signalNames[s.Signal]
	switch {
	case named:
		return fmt.Sprintf("signal %d (%s)", s.Signal, name)
	case s.Signal != 0:
		return fmt.Sprintf("signal %d", s.Signal)
	case s.Code < 0:
		return "no exit code"
	}
	return fmt.Sprintf("exit code %d", s.Code)
}

// signalNames are the signals of Linux, where commands run.
var signalNames = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
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
	// [Command].MaxTasks (limits.KindPIDs) or MaxMemory (limits.KindMemory), or
	// because it filled the disk or a directory (limits.KindDisk). The last is set
	// by the runner, which watches the disk, and not by backends.
	Exceeded *limits.ExceededError
	Kill     KillReport
}

// Cause returns why the command was ended, as [ExitStatus.Cause] does, or which limit it
// exceeded.
func (e Exit) Cause() string {
	switch x := e.Exceeded; {
	case x == nil || e.Status.TimedOut:
		return e.Status.Cause()
	case x.Kind == limits.KindDisk && x.Dir != "":
		return x.Dir + " is full"
	case x.Kind == limits.KindDisk:
		return "disk nearly full"
	case x.Kind == limits.KindPIDs:
		return "limit of processes"
	}
	return "out of memory"
}

// Ending returns how the command ended in a few words: the cause, the shortage that it met,
// or else its exit code or signal.
func (e Exit) Ending() string {
	switch cause := e.Cause(); {
	case cause != "":
		return cause
	case e.PIDsLimitHit:
		return "limit of processes"
	case len(e.Full) > 0:
		return "no space left"
	}
	return e.Status.exitText()
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
