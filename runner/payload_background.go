package runner

import (
	"context"
	"errors"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/shell"
)

// BackgroundEnded is how a command ended that a shell call started in the
// background. The call itself completed when it had the handle.
//
//	{"tool_use_id":"tu_…","handle":"background-1","ended_by":"shell_kill","exit_code":-1,"signal":15,…}
type BackgroundEnded struct {
	CallID string `json:"tool_use_id"`
	Handle string `json:"handle"`
	// EndedBy is "itself", "timeout", "shell_kill", "session_end", "disk_full",
	// "cancelled" (with the call, before it had the handle), or "sandbox_lost".
	EndedBy   string `json:"ended_by"`
	ExitCode  int    `json:"exit_code"` // -1 where a signal ended it or it was lost
	Signal    int    `json:"signal,omitempty"`
	OOMKilled bool   `json:"oom_killed,omitempty"`
	// Stdout and Stderr are what it wrote.
	Stdout UserStream         `json:"stdout"`
	Stderr UserStream         `json:"stderr"`
	WallMS int64              `json:"wall_ms"`
	CPUMS  int64              `json:"cpu_ms"`
	Kill   sandbox.KillReport `json:"kill"`
	// Error is what it was lost with.
	Error string `json:"error,omitempty"`
}

// Kind implements [Payload].
func (BackgroundEnded) Kind() Kind { return KindBackgroundEnded }

// backgroundEnded is the record of an end; cause is why its context ended, nil
// where it did not.
func backgroundEnded(j *background, exit sandbox.Exit, end shell.Ended, cause error) BackgroundEnded {
	p := BackgroundEnded{
		CallID: j.callID, Handle: j.handle, EndedBy: "itself",
		ExitCode: exit.Status.Code, Signal: exit.Status.Signal, OOMKilled: exit.Status.OOMKilled,
		Stdout: UserStream{exit.Stdout.Total, exit.Stdout.SHA256}, Stderr: UserStream{exit.Stderr.Total, exit.Stderr.SHA256},
		WallMS: milliseconds(end.Wall), CPUMS: milliseconds(exit.CPU), Kill: exit.Kill,
	}
	switch {
	case end.Lost:
		p.EndedBy, p.ExitCode = "sandbox_lost", -1
	case end.DiskReserve > 0:
		p.EndedBy = "disk_full"
	case exit.Status.TimedOut:
		p.EndedBy = "timeout"
	case !exit.Status.Cancelled:
	case errors.Is(cause, errKilled):
		p.EndedBy = "shell_kill"
	case errors.Is(cause, errSessionEnd):
		p.EndedBy = "session_end"
	case cause != nil && !errors.Is(cause, context.Canceled):
		p.EndedBy = "cancelled"
	}
	return p
}
