package mcp

import (
	"errors"
	"fmt"
)

// ErrClosed is the cause where a [Set] was closed.
var ErrClosed = errors.New("MCP servers are closed")

// ConfigError reports a server that can't be part of a [Set].
type ConfigError struct{ Server, Problem string }

// Error names the server and the problem.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("configure MCP server %q: %s", e.Server, e.Problem)
}

// ProtocolError reports what a server sent that it must not send. The server is
// stopped.
type ProtocolError struct {
	// Problem is a phrase without anything that the server sent.
	Problem string
}

// Error returns the problem.
func (e *ProtocolError) Error() string { return "protocol violation: " + e.Problem }

// AnswerError reports a response that is a message and holds nothing that can be used.
// Other requests may still work.
type AnswerError struct {
	// Problem is a phrase without anything that the server sent.
	Problem string
}

// Error returns the problem.
func (e *AnswerError) Error() string { return "bad answer: " + e.Problem }

// EndedError reports that the process of a server ended, or closed one of its pipes.
type EndedError struct {
	// Err is why, as [Process].Wait returned it. Nil: it exited with success.
	Err error
	// Closed is "input" or "output" if the process ran on and had closed that.
	Closed string
}

// Error returns how the server ended.
func (e *EndedError) Error() string {
	switch {
	case e.Closed != "":
		return "server closed its standard " + e.Closed
	case e.Err == nil:
		return "server exited"
	}
	return fmt.Sprintf("server ended: %v", e.Err)
}

// Unwrap returns why the process ended.
func (e *EndedError) Unwrap() error { return e.Err }

// TimeoutError reports what took a server too long.
type TimeoutError struct {
	// Op is the operation: "start", "call", "read its input".
	Op string
	// After is the timeout.
	After string
}

// Error returns the operation and its timeout.
func (e *TimeoutError) Error() string { return fmt.Sprintf("%s timed out after %s", e.Op, e.After) }

// ServerError reports a server that can't answer.
type ServerError struct {
	Server string
	// GivenUp reports that it won't be started again.
	GivenUp bool
	Err     error
}

// Error names the server and the reason.
func (e *ServerError) Error() string {
	if e.GivenUp {
		return fmt.Sprintf("MCP server %q failed and is not started again: %v", e.Server, e.Err)
	}
	return fmt.Sprintf("MCP server %q failed: %v", e.Server, e.Err)
}

// Unwrap returns the reason.
func (e *ServerError) Unwrap() error { return e.Err }
