package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/runner"
)

// Defaults of [Options].
const (
	// DefaultMaxSessions is the number of sessions that may be live at once. Each
	// may hold a container.
	DefaultMaxSessions = 16
	// DefaultMaxStreams is the number of event streams that one token may have
	// open.
	DefaultMaxStreams = 64
	// DefaultIdleTime is how long a session without a turn is kept. Its container
	// holds memory meanwhile.
	DefaultIdleTime = time.Hour
)

// Options are the options of a server. StateDir, Prepare and Tokens are required.
type Options struct {
	// StateDir is the state directory, with the sessions of all Caissons of its
	// user.
	StateDir string
	// Prepare returns the options of a session that a client requests. The server
	// adds Task, Broker, Mirror, Live and Force. done releases the resources after
	// the session. The error of a request that is not allowed is a [RequestError];
	// other errors are as those of runner.Open.
	Prepare func(ctx context.Context, r NewSession) (o runner.Options, done func(), err error)
	// OpenWorkspace opens the workspace of an ended session, for its changes. It
	// refuses directories on which sessions can't be started.
	OpenWorkspace func(path string) (*runner.Workspace, error)
	// Shows reports whether clients may see the sessions on a workspace, given by
	// its path: of this server and of other Caissons, live and ended. Nil shows
	// all.
	Shows func(workspace string) bool
	// Settle makes sure that nothing writes to an ended session's changes any
	// more, and returns an error if it can't. Nil does nothing.
	Settle func(ctx context.Context, session string) error

	// Tokens are the tokens of clients, each with its own label.
	Tokens []Token
	// Hosts are the names, or names and ports, of the server besides localhost and
	// its addresses.
	Hosts []string
	// MaxSessions, MaxStreams and IdleTime bound the resources of clients; zero
	// means the default.
	MaxSessions, MaxStreams int
	IdleTime                time.Duration
	// OpenMetrics serves /metrics without a token.
	OpenMetrics bool

	// Version is the program's.
	Version string
	// Logger gets messages for operators, never a token; nil discards them.
	Logger *zap.Logger
	// Force, when it is closed, destroys the sandboxes of sessions that are
	// being ended, and cancels running applies; nil never does.
	Force <-chan struct{}

	// Tests set these times so short, or so long, that only one of them can end a
	// request.
	headerTime, bodyTime time.Duration
}

// Server is the HTTP API. [Server.Serve] runs it and closes what it started. It
// is safe for concurrent use.
type Server struct {
	*diagnostics
	opts     Options
	sessions *registry
	streams  *streamsAPI
	guard    *guard
	handler  http.Handler
	openAPI  []byte
}

// New returns a server that does not listen yet.
func New(o Options) (*Server, error) {
	if o.StateDir == "" || o.Prepare == nil {
		return nil, errors.New("new server: Options.StateDir or Options.Prepare is missing")
	}
	defaultTo(&o.MaxSessions, DefaultMaxSessions)
	defaultTo(&o.MaxStreams, DefaultMaxStreams)
	defaultTo(&o.IdleTime, DefaultIdleTime)
	defaultTo(&o.headerTime, headerTime)
	defaultTo(&o.bodyTime, bodyTime)
	keys, err := newKeyring(o.Tokens)
	if err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s := &Server{diagnostics: newDiagnostics(o.Logger), opts: o}
	s.sessions = newRegistry(&s.opts, s.diagnostics)
	s.streams = newStreamsAPI(s.sessions, o.MaxStreams)
	s.guard = &guard{diagnostics: s.diagnostics, keys: keys, hosts: o.Hosts, openMetrics: o.OpenMetrics, bodyTime: o.bodyTime}
	mux := http.NewServeMux()
	s.openAPI, err = registerRoutes(mux, s.diagnostics,
		sessionsAPI{s.sessions}, turnsAPI{s.sessions}, confirmationsAPI{s.sessions}, s.streams, valuesAPI{s.sessions},
		changesAPI{sessions: s.sessions, open: o.OpenWorkspace, settle: o.Settle})
	if err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s.handler = s.guard.protectRoutes(mux)
	return s, nil
}

func defaultTo[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Handler returns the HTTP handler, for callers that listen themselves. They must
// call [Server.Close].
func (s *Server) Handler() http.Handler { return s.handler }

// OpenAPI returns the document that describes the API, as /openapi.json does.
func (s *Server) OpenAPI() []byte { return s.openAPI }

const (
	// headerTime bounds the time in which a request's headers arrive.
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	// shutdownTime bounds the responses that are still being written once the
	// sessions have ended.
	shutdownTime = 5 * time.Second
)

// Serve answers on listeners until ctx ends, then ends the sessions, their
// containers and the streams, and returns. It closes the listeners. A nil error
// means that nothing is left.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	h := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: s.opts.headerTime, IdleTimeout: idleTime, MaxHeaderBytes: 16 << 10,
		ErrorLog: zap.NewStdLog(s.log.WithOptions(zap.AddCallerSkip(1))),
	}
	var group errgroup.Group
	failed := make(chan struct{}, len(listeners))
	for _, l := range listeners {
		group.Go(func() error {
			err := h.Serve(l)
			failed <- struct{}{}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("serve on %s: %w", l.Addr(), err)
		})
	}
	select {
	case <-ctx.Done():
	case <-failed: // a listener failed: stop serving on the others
	}
	for _, l := range listeners {
		_ = l.Close() // Shutdown returns the error again
	}
	err := s.Close(context.Cause(ctx))
	late, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), shutdownTime, errors.New("answers take too long"))
	defer cancel()
	if h.Shutdown(late) != nil {
		_ = h.Close() // closes their connections
	}
	if serr := group.Wait(); ctx.Err() == nil {
		err = errors.Join(err, serr)
	}
	return err
}

// Close ends all sessions with a cause, and waits until they have ended. Its error
// names what could not be removed. Further calls wait and return nil.
func (s *Server) Close(cause error) error {
	return s.sessions.closeAll(cause)
}
