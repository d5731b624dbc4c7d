package record

import (
	"github.com/caisson-run/caisson/sandbox"
)

// BackgroundEnded is how a command ended that a shell call started in the
// background. The call itself completed when it had the handle.
//
//	{"tool_use_id":"tu_…","handle":"background-1","ended_by":"shell_kill","exit_code":-1,"signal":15,…}
type BackgroundEnded struct {
	CallID string `json:"tool_use_id"`
	Handle string `json:"handle"`
	// EndedBy is "itself", "timeout", "shell_kill", "session_end", "fork",
	// "collect" (before a trial's files were collected), "repository" (one was
	// made again and again, so that the host's git would obey it), "disk_full",
	// "cancelled" (with the call, before it had the handle), or "sandbox_lost".
	EndedBy string `json:"ended_by"`
	sandbox.ExitStatus
	sandbox.Shortage
	Stdout UserStream         `json:"stdout"`
	Stderr UserStream         `json:"stderr"`
	WallMS int64              `json:"wall_ms"`
	CPUMS  int64              `json:"cpu_ms"`
	Kill   sandbox.KillReport `json:"kill"`
	// Recording is what its terminal showed, nil without one.
	Recording *Recording `json:"recording,omitempty"`
	// Error is the error with which the sandbox was lost.
	Error string `json:"error,omitempty"`
}

// Kind implements [Payload].
func (BackgroundEnded) Kind() Kind { return KindBackgroundEnded }
