package sandbox

import (
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// ExitStatus describes how a command ended. It is a value, never an error.
// Records embed it.
type ExitStatus struct {
	// Code is 0 to 255, or -1 if a signal ended the command or it did not run.
	Code int `json:"exit_code"`
	// Signal is the number of the signal that ended the command, or 0.
	Signal int `json:"signal,omitempty"`
	// TimedOut reports whether the command's own timeout ended it.
	TimedOut bool `json:"timed_out,omitempty"`
	// Cancelled reports whether the caller's context ended the command.
	Cancelled bool `json:"cancelled,omitempty"`
	// OOMKilled reports whether the kernel counted an out-of-memory kill while
	// the command ran. It is never inferred from a status of 137.
	OOMKilled bool `json:"oom_killed,omitempty"`
}

// Success reports whether the exit code is 0 and nothing forced the end.
func (s ExitStatus) Success() bool {
	return s == ExitStatus{}
}

// Cause returns why the command was ended: "timed out", "out of memory" or
// "cancelled". It is "" if the command ended by itself.
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

// exitText returns "exit code 3", "signal 9 (SIGKILL)", or just the number of a
// signal without a known name.
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

var signalNames = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
	24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}

// Exit is the result of a command.
type Exit struct {
	Status         ExitStatus
	Stdout, Stderr Stream
	// Wall is the time from the fork until the command's last process has
	// ended. CPU is the user and system time of the processes that were waited
	// for. If no other command ran meanwhile, it includes the command's
	// daemons.
	Wall, CPU time.Duration
	// PeakMemory is the largest resident set of one of its processes, in bytes
	// (rusage), or 0 if the kernel does not report it.
	PeakMemory int64
	Shortage
	// Exceeded is set if the command was killed because it exceeded
	// [Command].MaxTasks (limits.KindPIDs) or MaxMemory (limits.KindMemory), or
	// because it filled the disk or a directory (limits.KindDisk). Backends
	// don't set the last: the runner watches the disk.
	Exceeded *limits.ExceededError
	Kill     KillReport
}

// Shortage is what ran out in the sandbox while a command ran, without ending the
// command. Records embed it.
type Shortage struct {
	// PIDsLimitHit reports whether the kernel counted a fork that failed at the
	// sandbox's pids limit while the command ran. It is never inferred from
	// output. gVisor has no such counter, so there it means that the command
	// itself could not be started.
	PIDsLimitHit bool `json:"pids_limit_hit,omitempty"`
	// Full lists the in-memory file systems (/tmp, the home directory,
	// /dev/shm) that were full when a command failed.
	Full []string `json:"full,omitempty"`
}

// Cause returns why the command was ended, like [ExitStatus.Cause], or which
// limit it exceeded.
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

// Ending returns how the command ended in a few words: the cause, the shortage
// it met, or else its exit code or signal.
func (e Exit) Ending() string {
	switch cause := e.Cause(); {
	case cause != "":
		return cause
	case e.PIDsLimitHit && !e.Status.Success(): // it may be another command's
		return "limit of processes"
	case len(e.Full) > 0:
		return "no space left"
	}
	return e.Status.exitText()
}

// Stream is one output stream of a command that has ended.
type Stream struct {
	// Total is the number of bytes that were written, and SHA256 their hash in
	// hex.
	Total  int64
	SHA256 string
	// Live is the number of bytes that the writer received.
	Live int64
	// Tail is the last bytes if Total is more than Live. It does not overlap
	// the live bytes: the Total-Live-len(Tail) bytes between them were left
	// out.
	Tail []byte
}

// KillReport describes how a command's processes were killed. It is zero if the
// command left none.
type KillReport struct {
	// Method is how the processes were found: "gid" or "subreaper".
	Method string `json:"method,omitempty"`
	// Terminated is the number of processes that got SIGTERM, Killed the number
	// that got SIGKILL.
	Terminated int `json:"terminated,omitempty"`
	Killed     int `json:"killed,omitempty"`
	// AfterExit reports whether processes were left, and killed, after the
	// command itself had ended.
	AfterExit bool `json:"after_exit,omitempty"`
	// Left is the number of processes that could not be killed. If it is not 0,
	// the container is killed.
	Left int `json:"left"`
	// KillTime is the time from the first SIGKILL until no process was left.
	KillTime time.Duration `json:"kill_time_ns,omitempty"`
}
