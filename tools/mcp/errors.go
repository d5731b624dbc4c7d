package mcp

import (
	"errors"
	"fmt"
	"time"
)

// ErrClosed is the cause if a [Set] was closed.
var ErrClosed = errors.New("MCP servers are closed")

// ConfigError reports a server that can't be part of a [Set].
type ConfigError struct{ Server, Problem string }

func (e *ConfigError) Error() string {
	return fmt.Sprintf("configure MCP server %q: %s", e.Server, e.Problem)
}

// ProtocolError reports something that a server must not send. The server is
// stopped.
type ProtocolError struct {
	// Problem is a phrase without anything that the server sent.
	Problem string
}

func (e *ProtocolError) Error() string { return "protocol violation: " + e.Problem }

// AnswerError reports a response that is a valid message but can't be used. Other
// requests may still work.
type AnswerError struct {
	// Problem is a phrase without anything that the server sent.
	Problem string
}

func (e *AnswerError) Error() string { return "bad answer: " + e.Problem }

// EndedError reports that a server's process ended, or closed one of its pipes.
type EndedError struct {
	// Err is the result of [Process].Wait. It is nil if the process exited with
	// success.
	Err error
	// Closed is "input" or "output" if the process closed that pipe and ran on.
	Closed string
}

func (e *EndedError) Error() string {
	switch {
	case e.Closed != "":
		return "server closed its standard " + e.Closed
	case e.Err == nil:
		return "server exited"
	}
	return fmt.Sprintf("server ended: %v", e.Err)
}

func (e *EndedError) Unwrap() error { return e.Err }

// TimeoutError reports an operation that took a server too long.
type TimeoutError struct {
	// Op is the operation, such as "start" or "call".
	Op    string
	After time.Duration
}

func (e *TimeoutError) Error() string { return fmt.Sprintf("%s timed out after %s", e.Op, e.After) }

// ServerError reports a server that can't answer.
type ServerError struct {
	Server string
	// GivenUp reports that it won't be started again.
	GivenUp bool
	Err     error
}

func (e *ServerError) Error() string {
	if e.GivenUp {
		return fmt.Sprintf("MCP server %q failed and is not started again: %v", e.Server, e.Err)
	}
	return fmt.Sprintf("MCP server %q failed: %v", e.Server, e.Err)
}

func (e *ServerError) Unwrap() error { return e.Err }
