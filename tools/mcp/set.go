package mcp

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// Options configure a [Set]. Only Tokens may be nil.
type Options struct {
	Servers []Server
	// Launch starts a stdio server and returns once it runs. ctx bounds only the
	// start. The server's standard error goes to stderr, which never blocks. An
	// error of a server's first Launch is final.
	Launch func(ctx context.Context, s Server, stderr io.Writer) (Process, error)
	// HTTPClient makes the client for a server over HTTP, under the session's
	// policy.
	HTTPClient func(s Server) (*http.Client, error)
	// Tokens has the tokens of servers that people have signed in to. It may be nil.
	Tokens *oauth.Store
	// Register and Unregister change the session's tools.
	Register   func(tools.Factory) error
	Unregister func(tools.Name)
	// Report gets every event, one at a time, and each server's in order. It must not
	// call the Set.
	Report func(Event)
	// Roots is the only root that servers are told, such as file:///workspace.
	Roots string
	// Redact removes secrets from servers' texts that are reported or logged.
	Redact func(string) string
	// Version is Caisson's version, for servers.
	Version string
	// Log gets details besides the events.
	Log *zap.Logger
}

const (
	// startParallel bounds the servers that start at the same time.
	startParallel = 8
	// startTurn bounds how long a starting server makes others wait.
	startTurn = 3 * time.Second
)

// Set is the servers of one session. Its methods are safe for concurrent use.
type Set struct {
	opts    Options
	limits  frameLimits
	servers []*server
	// turns has an element for each starting server that others wait for.
	turns    chan struct{}
	features sync.Once

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu sync.Mutex // guards the next two
	// starting are the servers of the first Start, or nil before it.
	starting  []*server
	running   sync.WaitGroup
	reporting sync.Mutex
}

// NewSet checks the configuration and returns a Set in which no server runs yet.
// Its error is a [*ConfigError].
func NewSet(o Options) (*Set, error) {
	s := &Set{opts: o, limits: defaultFrameLimits, turns: make(chan struct{}, startParallel)}
	seen := map[string]bool{}
	for _, cfg := range o.Servers {
		switch err := cfg.checkConfig(); {
		case err != nil:
			return nil, err
		case seen[cfg.Name]:
			return nil, &ConfigError{Server: cfg.Name, Problem: "configured twice"}
		}
		seen[cfg.Name] = true
		s.servers = append(s.servers, newServer(s, cfg))
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s, nil
}

// Start starts the named servers, or all if none is named. It returns when the
// first start of each has succeeded or failed, or ctx ends. The servers then go on
// starting and running. The first call decides which servers run.
func (s *Set) Start(ctx context.Context, names ...string) {
	s.mu.Lock()
	if s.starting == nil && s.ctx.Err() == nil {
		s.starting = slices.DeleteFunc(slices.Clone(s.servers), func(srv *server) bool {
			return len(names) > 0 && !slices.Contains(names, srv.cfg.Name)
		})
		for _, srv := range s.starting {
			s.running.Go(srv.runLives)
		}
	}
	starting := s.starting
	s.mu.Unlock()
	for _, srv := range starting {
		select {
		case <-srv.tried:
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// WaitServer waits until a server can be called. The error is a [*ServerError], a
// [*ConfigError], or why ctx ended.
func (s *Set) WaitServer(ctx context.Context, name string) error {
	srv := s.serverNamed(name)
	if srv == nil {
		return &ConfigError{Server: name, Problem: "no such server"}
	}
	_, err := srv.waitReady(ctx)
	return err
}

func (s *Set) serverNamed(name string) *server {
	i := slices.IndexFunc(s.servers, func(srv *server) bool { return srv.cfg.Name == name })
	if i < 0 {
		return nil
	}
	return s.servers[i]
}

// Tools returns the tools that the servers offer, by name.
func (s *Set) Tools() []Tool {
	var list []Tool
	for _, srv := range s.servers {
		list = append(list, srv.offeredTools()...)
	}
	slices.SortFunc(list, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Close stops every server and returns when nothing of them is left. Its error is
// why ctx ended.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.cancel(ErrClosed)
	s.mu.Unlock()
	return awaitGroup(ctx, &s.running)
}

// awaitGroup waits for a group. Its error is why ctx ended before.
func awaitGroup(ctx context.Context, wg *sync.WaitGroup) error {
	finished := make(chan struct{})
	go func() {
		wg.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Set) reportEvent(e Event) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	s.opts.Report(e)
}

// takeTurn waits until a server may start, and returns the function that ends its
// turn. A server that takes long to start loses its turn but goes on.
func (s *Set) takeTurn(ctx context.Context) (func(), error) {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	release := sync.OnceFunc(func() { <-s.turns })
	timer := time.AfterFunc(startTurn, release)
	return func() {
		timer.Stop()
		release()
	}, nil
}
