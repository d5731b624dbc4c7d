package mcp

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// Defaults of [Server].
const (
	// DefaultStartTimeout bounds a server's start: its launch, the handshake and
	// the lists of what it offers.
	DefaultStartTimeout = 30 * time.Second
	// DefaultCallTimeout bounds one call, from the last sign of progress.
	DefaultCallTimeout = 2 * time.Minute
	// MaxCallTime bounds a call whose progress extends its timeout, unless the
	// timeout is longer.
	MaxCallTime = 10 * time.Minute
)

// Server configures one server. It has a Command or a URL.
type Server struct {
	// Name is the part of its tools' names before the slash: letters, digits, "-"
	// and single "_".
	Name string

	// Command and Args start a stdio server, with the variables Env as NAME=value.
	// Values may be secret.
	Command string
	Args    []string
	Env     []string
	// Dir is the absolute working directory, "" for the default of Options.Launch.
	Dir string
	// OnHost lets the server run outside the sandbox. An operator must choose this
	// explicitly.
	OnHost bool
	// Memory, in bytes, and Processes bound a server in the sandbox. Zero means the
	// default of Options.Launch.
	Memory    int64
	Processes int

	// URL is the endpoint of a server over streamable HTTP or, if SSE is set, over
	// the older SSE transport. Headers are sent with every request. Their values
	// may be secret.
	URL     string
	SSE     bool
	Headers map[string]string
	// OAuth is how to obtain tokens for a server over streamable HTTP, unless
	// Headers has Authorization.
	OAuth oauth.Config

	// Include are the raw names of the tools to offer, Exclude the ones not to
	// offer. A "*" at the end matches any rest. An empty Include means all. Exclude
	// wins.
	Include, Exclude []string

	// StartTimeout and CallTimeout bound a start and a call. Zero means the default.
	StartTimeout, CallTimeout time.Duration

	// Source is the path where the server was configured, for people.
	Source string
}

// Transport returns "stdio", "http" or "sse".
func (s Server) Transport() string {
	switch {
	case s.Command != "":
		return "stdio"
	case s.SSE:
		return "sse"
	}
	return "http"
}

func (s Server) startTimeout() time.Duration { return cmp.Or(s.StartTimeout, DefaultStartTimeout) }

func (s Server) callTimeout() time.Duration { return cmp.Or(s.CallTimeout, DefaultCallTimeout) }

// maxCallTime bounds a call, however much progress it makes.
func (s Server) maxCallTime() time.Duration { return max(s.callTimeout(), MaxCallTime) }

// InSandbox reports whether the server runs in the session's sandbox.
func (s Server) InSandbox() bool { return s.Command != "" && !s.OnHost }

// Place returns where the server runs: sandbox, host, or remote if it has a URL.
func (s Server) Place() string {
	switch {
	case s.Command == "":
		return "remote"
	case s.OnHost:
		return "host"
	}
	return "sandbox"
}

func (s Server) offersTool(raw string) bool {
	matches := func(pattern string) bool {
		prefix, any := strings.CutSuffix(pattern, "*")
		return pattern == raw || any && strings.HasPrefix(raw, prefix)
	}
	if slices.ContainsFunc(s.Exclude, matches) {
		return false
	}
	return len(s.Include) == 0 || slices.ContainsFunc(s.Include, matches)
}

func (s Server) checkConfig() error {
	switch {
	case s.Command == "" && s.URL == "":
		return &ConfigError{Server: s.Name, Problem: "neither a command nor a URL"}
	case s.Command != "" && s.URL != "":
		return &ConfigError{Server: s.Name, Problem: "both a command and a URL"}
	case s.StartTimeout < 0 || s.CallTimeout < 0:
		return &ConfigError{Server: s.Name, Problem: "negative timeout"}
	}
	if _, err := tools.ParseName(s.Name + "/tool"); err != nil || strings.Contains(s.Name, "/") {
		return &ConfigError{Server: s.Name, Problem: "invalid name: want letters, digits, - and single _"}
	}
	return nil
}

// Process is a running stdio server.
type Process interface {
	// Stdin and Stdout are its pipes. Stop, and the end of the process, unblock
	// their readers and writers.
	Stdin() io.WriteCloser
	Stdout() io.Reader
	// Wait waits for the process to end and returns why. Several goroutines may
	// call it.
	Wait() error
	// Stop ends the process and everything it started, first by closing its
	// standard input, and returns when it is gone or ctx ends. After it returned
	// nil, Wait returns at once. Several goroutines may call it, repeatedly.
	Stop(ctx context.Context) error
}

// link is a connection to a server for one of its lives, and the way to end it.
// Each kind of server has one implementation.
type link interface {
	// Connect returns the connection. It is called once, bounded by ctx.
	mcp.Transport
	// endSignal is closed when the server or the connection to it has ended.
	endSignal() <-chan struct{}
	// endCause returns why it ended, once endSignal is closed.
	endCause() error
	// stopServer ends it and returns when nothing of it is left, or ctx ends. It
	// may be called at any time, repeatedly.
	stopServer(ctx context.Context) error
	// stderrTail returns the end of the server's standard error, and the size of
	// all of it.
	stderrTail() (tail string, total int64)
}
