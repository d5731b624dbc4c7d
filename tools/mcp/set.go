package mcp

import (
	"context"
	"io"
	"net/http"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
)

// Options configure a [Set]. Launch is required for stdio servers and HTTPClient for
// the others.
type Options struct {
	Servers []Server
	// Launch starts a stdio server and returns once it runs; ctx bounds only the
	// start. What the server writes to its standard error goes to stderr, which
	// never blocks for long.
	Launch func(ctx context.Context, s Server, stderr io.Writer) (Process, error)
	// HTTPClient makes the client for a server over HTTP, under the session's policy.
	HTTPClient func(s Server) (*http.Client, error)
	// Register and Unregister change the session's tools. Nil: what the servers
	// offer is only reported.
	Register   func(tools.Factory) error
	Unregister func(tools.Name)
	// Report gets every event, one at a time and in order for each server. It
	// must not call the Set. Nil: none is reported.
	Report func(Event)
	// Roots is the only root that servers are told: file:///workspace. "": none.
	Roots string
	// Redact removes secrets from texts of servers that are reported. Nil: none.
	Redact func(string) string
	// StartParallel bounds the servers that start at the same time. Zero means 8.
	StartParallel int
	// Log gets what is no event. Nil: nothing is logged.
	Log *zap.Logger
}

// Set is the servers of one session. Its methods are safe for concurrent use.
type Set struct {
	opts Options
}

// NewSet checks the configuration and returns a Set in which no server runs yet. Its
// error is a [*ConfigError].
func NewSet(o Options) (*Set, error) {
	seen := map[string]bool{}
	for _, s := range o.Servers {
		switch err := s.check(); {
		case err != nil:
			return nil, err
		case seen[s.Name]:
			return nil, &ConfigError{Server: s.Name, Problem: "configured twice"}
		case s.Command != "" && o.Launch == nil || s.URL != "" && o.HTTPClient == nil:
			return nil, &ConfigError{Server: s.Name, Problem: "transport is not available"}
		}
		seen[s.Name] = true
	}
	return &Set{opts: o}, nil
}

// Start starts all servers and returns when each has started, failed or run into its
// timeout. Servers keep running after ctx ends; only starts are bounded by it.
func (s *Set) Start(ctx context.Context) { <-ctx.Done() }

// WaitServer waits for the first start of a server to succeed or fail. Its error is
// why calls of the server's tools can't work now, or that ctx ended.
func (s *Set) WaitServer(ctx context.Context, name string) error { return context.Cause(ctx) }

// Tools returns the tools of all servers that run, by server and name.
func (s *Set) Tools() []Tool { return nil }

// Close stops every server and returns when nothing of them is left, or ctx ends.
func (s *Set) Close(ctx context.Context) error { return nil }
