package mcp

import (
	"time"

	"github.com/caisson-run/caisson/tools"
)

// Event is passed to [Options].Report: a [ServerStarted], [ServerFailed],
// [ServerStopped], [ServerRestarting], [ToolsChanged] or [RequestRefused]. Events
// with JSON tags are the payloads of records. Texts from a server are bounded and
// have no control characters.
type Event interface{ isEvent() }

// Tool identifies one tool of a server.
type Tool struct {
	// Name is canonical: server/tool. Raw is the server's own name for it, or "" if
	// it is the part of Name after the slash.
	Name tools.Name `json:"name"`
	Raw  string     `json:"raw,omitempty"`
	// Hash is the hex SHA-256 of the definition's canonical JSON.
	Hash string `json:"sha256"`
}

// Skipped is something of a server that is not offered.
type Skipped struct {
	Name string `json:"name"` // the raw name, safe for display and bounded
	Why  string `json:"why"`  // a phrase
}

// ServerStarted reports that a server is ready, also after a restart.
type ServerStarted struct {
	Server    string `json:"server"`
	Transport string `json:"transport"` // stdio, http or sse
	// Runs is [Server.Place]. Identity is the identity of the server's commands in
	// the sandbox. It is zero here: the receiver of [Options].Report sets it.
	Runs     string `json:"runs"`
	Identity int    `json:"identity,omitempty"`
	// Protocol is the negotiated version. Title and Version are the server's name
	// and version, as it declares them.
	Protocol  string    `json:"protocol"`
	Title     string    `json:"title,omitempty"`
	Version   string    `json:"version,omitempty"`
	Tools     []Tool    `json:"tools"`
	ToolCount int       `json:"tool_count"`
	Skipped   []Skipped `json:"skipped"`
	Resources bool      `json:"resources,omitempty"`
	Prompts   bool      `json:"prompts,omitempty"`
	// Restarts counts the starts before this one.
	Restarts int   `json:"restarts,omitempty"`
	WallMS   int64 `json:"wall_ms"`
}

// ServerFailed reports a failed start. If GivenUp is set, no other will be tried.
type ServerFailed struct {
	Server    string `json:"server"`
	Transport string `json:"transport"`
	Cause     string `json:"cause"` // the text of Err
	Err       error  `json:"-"`
	// Stderr is the end of the server's standard error.
	Stderr  string `json:"stderr,omitempty"`
	GivenUp bool   `json:"given_up,omitempty"`
	WallMS  int64  `json:"wall_ms"`
}

// ServerStopped reports the end of a server that had started.
type ServerStopped struct {
	Server    string `json:"server"`
	Transport string `json:"transport"`
	// Err is the reason and Cause its text. They are empty after Close. Calls
	// counts the calls that failed with it.
	Cause string `json:"cause,omitempty"`
	Err   error  `json:"-"`
	Calls int    `json:"calls,omitempty"`
	// Stderr is the end of the server's standard error, StderrBytes the size of all
	// of it.
	Stderr      string `json:"stderr,omitempty"`
	StderrBytes int64  `json:"stderr_bytes,omitempty"`
	GivenUp     bool   `json:"given_up,omitempty"`
	WallMS      int64  `json:"wall_ms"`
}

// ServerRestarting reports a start to be tried after Wait.
type ServerRestarting struct {
	Server string
	// Attempt counts from 1 since the server last ran well.
	Attempt int
	Wait    time.Duration
}

// ToolsChanged reports that a running server's tools have changed.
type ToolsChanged struct {
	Server  string    `json:"server"`
	Added   []Tool    `json:"added"`
	Changed []Tool    `json:"changed"`
	Removed []Tool    `json:"removed"`
	Skipped []Skipped `json:"skipped"`
}

// RequestRefused reports a server's request that was refused: sampling,
// elicitation, an unknown method. It is reported once per method, with a Count of
// 1.
type RequestRefused struct {
	Server string `json:"server"`
	Method string `json:"method"`
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

func (ServerStarted) isEvent()    {}
func (ServerFailed) isEvent()     {}
func (ServerStopped) isEvent()    {}
func (ServerRestarting) isEvent() {}
func (ToolsChanged) isEvent()     {}
func (RequestRefused) isEvent()   {}
