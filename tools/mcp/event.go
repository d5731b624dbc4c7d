package mcp

import (
	"time"

	"github.com/caisson-run/caisson/tools"
)

// Event is passed to [Options].Report: a [ServerStarted], [ServerFailed],
// [ServerStopped], [ServerRestarting], [ToolsChanged] or [RequestRefused]. Texts that
// come from a server are cleaned of control characters and bounded.
type Event interface{ isEvent() }

// Tool identifies one tool of a server.
type Tool struct {
	// Name is canonical: server/tool. Raw is the server's own name for it.
	Name tools.Name
	Raw  string
	// Hash is the hex SHA-256 of the definition's canonical JSON.
	Hash string
}

// Skipped is something of a server that is not offered.
type Skipped struct {
	// Name is the raw name, safe for display and bounded. Reason is a phrase.
	Name, Reason string
}

// ServerStarted reports a server that is ready, after a restart too.
type ServerStarted struct {
	Server, Transport string
	// Protocol is the negotiated version; Title and Version are the name and the
	// version that the server declares.
	Protocol, Title, Version string
	Tools                    []Tool
	Skipped                  []Skipped
	Resources, Prompts       bool
	// Restarts counts the starts before this one.
	Restarts int
	Took     time.Duration
}

// ServerFailed reports a start that failed. GivenUp: no other will be tried.
type ServerFailed struct {
	Server, Transport string
	Err               error
	// Stderr is the end of what the server wrote to its standard error.
	Stderr  string
	GivenUp bool
	Took    time.Duration
}

// ServerStopped reports the end of a server that had started.
type ServerStopped struct {
	Server, Transport string
	// Err is why; nil after Close. Calls counts the calls that it failed.
	Err   error
	Calls int
	// Stderr is the end of what the server wrote to its standard error, and
	// StderrBytes all of it.
	Stderr      string
	StderrBytes int64
	GivenUp     bool
	Ran         time.Duration
}

// ServerRestarting reports a start that will be tried after Wait.
type ServerRestarting struct {
	Server string
	// Attempt counts from 1 since the server last ran well.
	Attempt int
	Wait    time.Duration
}

// ToolsChanged reports that a running server offers other tools than before.
type ToolsChanged struct {
	Server                  string
	Added, Changed, Removed []Tool
	Skipped                 []Skipped
}

// RequestRefused reports requests of a server that were refused: sampling,
// elicitation, unknown methods. It is reported once per method, and Count is 1.
type RequestRefused struct {
	Server, Method, Reason string
	Count                  int
}

func (ServerStarted) isEvent()    {}
func (ServerFailed) isEvent()     {}
func (ServerStopped) isEvent()    {}
func (ServerRestarting) isEvent() {}
func (ToolsChanged) isEvent()     {}
func (RequestRefused) isEvent()   {}
