package record

import "github.com/caisson-run/caisson/sandbox"

// UserCommandStarted reports that a user runs a command in the session's
// sandbox, with caisson sandbox exec or over HTTP. It is on the disk before the
// command starts.
//
//	{"exec_id":"exe_…","argv":["sh","-c","ls"],"pid":4712}
type UserCommandStarted struct {
	ExecID string   `json:"exec_id"`
	Argv   []string `json:"argv"`
	Dir    string   `json:"dir,omitempty"`
	// Env has the names of the command's own variables.
	Env []string `json:"env,omitempty"`
	// Terminal is the size at first of the command's terminal, nil without one.
	Terminal *sandbox.TerminalSize `json:"terminal,omitempty"`
	// Client is the requesting user: uid:1000 and its process PID, as the
	// kernel reports them, or http:alice and the server's PID.
	PID    int32  `json:"pid"`
	Client string `json:"client"`
}

// UserCommandEnded is how the command ended.
type UserCommandEnded struct {
	ExecID string `json:"exec_id"`
	sandbox.ExitStatus
	sandbox.Shortage
	// Stdout and Stderr describe the output that the user received. It is not
	// kept.
	// A terminal's output is in Recording.
	Stdout UserStream         `json:"stdout"`
	Stderr UserStream         `json:"stderr"`
	WallMS int64              `json:"wall_ms"`
	CPUMS  int64              `json:"cpu_ms"`
	Kill   sandbox.KillReport `json:"kill"`
	// Recording is what its terminal showed, nil without one.
	Recording *Recording `json:"recording,omitempty"`
	// Error tells why it did not run, or how it was lost.
	Error string `json:"error,omitempty"`
}

// UserStream is one output stream of a user's command.
type UserStream struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Recording is a file in the session's directory with what a terminal showed, as
// asciicast v2, without secrets.
type Recording struct {
	// Path is relative to the session's directory.
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Truncated reports that the end is missing.
	Truncated bool `json:"truncated,omitempty"`
}

// Kind implements [Payload].
func (UserCommandStarted) Kind() Kind { return KindUserCommandStarted }

// Kind implements [Payload].
func (UserCommandEnded) Kind() Kind { return KindUserCommandEnded }
