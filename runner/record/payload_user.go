package record

import "github.com/caisson-run/caisson/sandbox"

// UserCommandStarted reports that a user of this machine runs a command in the
// session's sandbox, by caisson sandbox exec. It is on the disk before the
// command starts.
//
//	{"exec_id":"exe_…","argv":["sh","-c","ls"],"pid":4712}
type UserCommandStarted struct {
	ExecID string   `json:"exec_id"`
	Argv   []string `json:"argv"`
	Dir    string   `json:"dir,omitempty"`
	// Env has the names of the variables that the command got besides the sandbox's own.
	Env []string `json:"env,omitempty"`
	// PID is the asking process, and Client its user (uid:1000), as the kernel
	// reports them.
	PID    int32  `json:"pid"`
	Client string `json:"client"`
}

// UserCommandEnded is how it ended.
type UserCommandEnded struct {
	ExecID string `json:"exec_id"`
	sandbox.ExitStatus
	// Stdout and Stderr describe the output that the user received; it is not kept.
	Stdout UserStream         `json:"stdout"`
	Stderr UserStream         `json:"stderr"`
	WallMS int64              `json:"wall_ms"`
	CPUMS  int64              `json:"cpu_ms"`
	Kill   sandbox.KillReport `json:"kill"`
	// Error is why it did not run, or what it was lost with.
	Error string `json:"error,omitempty"`
}

// UserStream is one output stream of a user's command.
type UserStream struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Kind implements [Payload].
func (UserCommandStarted) Kind() Kind { return KindUserCommandStarted }

// Kind implements [Payload].
func (UserCommandEnded) Kind() Kind { return KindUserCommandEnded }
