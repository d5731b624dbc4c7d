package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/runner"
)

// Defaults of [Options].
const (
	// DefaultMaxSessions is how many sessions live at once: each may hold a
	// container.
	DefaultMaxSessions = 16
	// DefaultMaxStreams is how many event streams one token may have open.
	DefaultMaxStreams = 64
	// DefaultIdleTime is how long a session without a turn is kept: its
	// container holds memory meanwhile.
	DefaultIdleTime = time.Hour
)

// Options say what a server serves. StateDir, Prepare and Tokens are required.
type Options struct {
	// StateDir is the state folder: the sessions of all Caissons of its user.
	StateDir string
	// Prepare makes the options of a session from what a client asks for. The
	// server adds Task, Broker, Mirror, Live and Force. done ends what was made,
	// after the session. A request that asks for what it may not have gives a
	// [RequestError]; other errors are as of runner.Open.
	Prepare func(ctx context.Context, r NewSession) (o runner.Options, done func(), err error)
	// OpenWorkspace opens the folder of an ended session, for its changes. It
	// refuses folders that sessions could not be started on.
	OpenWorkspace func(path string) (*runner.Workspace, error)
	// Shows says whether clients may see a session on a workspace, by its path: of
	// this server and of other Caissons, live and ended. Nil shows all.
	Shows func(workspace string) bool
	// Settle makes sure that nothing writes to an ended session's changes any
	// more, or says why that can't be told. Nil does nothing.
	Settle func(ctx context.Context, session string) error

	// Tokens are those that clients may bear, each with its own label.
	Tokens []Token
	// Hosts are names, or names and ports, that the server goes by besides
	// localhost and its addresses.
	Hosts []string
	// MaxSessions, MaxStreams and IdleTime bound what clients hold; zero is the
	// default.
	MaxSessions, MaxStreams int
	IdleTime                time.Duration
	// OpenMetrics serves /metrics without a token.
	OpenMetrics bool

	// Version is the program's.
	Version string
	// Logger gets what operators should know; nil discards. No token reaches it.
	Logger *zap.Logger
	// Force, when it is closed, destroys the sandboxes of sessions that are
	// being ended, and cuts short what is being applied; nil never does.
	Force <-chan struct{}

	// Tests make these times so short, or so long, that nothing else can be what
	// ends a request.
	headerTime, bodyTime time.Duration
}

// Server is the HTTP API. [Server.Serve] runs it and closes what it started. It
// is safe for concurrent use.
type Server struct {
	opts    Options
	log     *zap.Logger
	strays  *zap.Logger // of answers to no live session and of missing roles: bounded
	keys    *keyring
	metrics *metrics
	indexes *indexes
	handler http.Handler
	openAPI []byte

	// ctx is that of the sessions; end gives it its cause.
	ctx  context.Context //nolint:containedctx // sessions outlive the requests that start them
	end  context.CancelCauseFunc
	stop sync.Once
	// stopped is closed when the last session is.
	stopped chan struct{}

	mu       sync.Mutex
	closing  bool
	starting int // sessions that are being made
	sessions map[string]*session
	streams  map[string]int // by client
	// ending is for the sessions that are being made, and the changes that are
	// being applied.
	ending sync.WaitGroup
}

// New makes a server that listens nowhere yet.
func New(o Options) (*Server, error) {
	s := &Server{opts: o, log: o.Logger, sessions: map[string]*session{}, streams: map[string]int{}, stopped: make(chan struct{})}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	s.strays = s.log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, strayEvery, strayMost, 0)
	}))
	if o.StateDir == "" || o.Prepare == nil {
		return nil, errors.New("new server: Options.StateDir or Options.Prepare is missing")
	}
	defaultTo(&s.opts.MaxSessions, DefaultMaxSessions)
	defaultTo(&s.opts.MaxStreams, DefaultMaxStreams)
	defaultTo(&s.opts.IdleTime, DefaultIdleTime)
	defaultTo(&s.opts.headerTime, headerTime)
	defaultTo(&s.opts.bodyTime, bodyTime)
	var err error
	if s.keys, err = newKeyring(o.Tokens); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s.metrics, s.indexes = newMetrics(s.states), newIndexes(s.log)
	s.ctx, s.end = context.WithCancelCause(context.Background())
	mux := http.NewServeMux()
	if s.openAPI, err = s.register(mux); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s.handler = s.guard(s.authorize(mux, s.throttle(s.body(s.route(mux)))))
	return s, nil
}

func defaultTo[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Handler is what the server answers with, for whoever listens by themselves;
// they call [Server.Close].
func (s *Server) Handler() http.Handler { return s.handler }

// OpenAPI is the document that describes the API, as /openapi.json gives it.
func (s *Server) OpenAPI() []byte { return s.openAPI }

const (
	// headerTime bounds the time in which a request's headers arrive.
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	// shutdownTime is how long answers that are being written may take once the
	// sessions have ended.
	shutdownTime = 5 * time.Second
)

// Serve answers on listeners until ctx ends, then ends the sessions, their
// containers and the streams, and returns. It closes the listeners. Its error
// says what of it failed: nil means that nothing is left.
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
	case <-failed: // of one listener: the rest is no server that was asked for
	}
	for _, l := range listeners {
		_ = l.Close() // Shutdown says so again
	}
	err := s.Close(context.Cause(ctx))
	late, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), shutdownTime, errors.New("answers take too long"))
	defer cancel()
	if h.Shutdown(late) != nil {
		_ = h.Close() // cuts them
	}
	if serr := group.Wait(); ctx.Err() == nil {
		err = errors.Join(err, serr)
	}
	return err
}

// Close ends all sessions with a cause, and waits for it. Its error names what
// of them is left. Further calls wait and return nil.
func (s *Server) Close(cause error) error {
	var err error
	s.stop.Do(func() {
		s.mu.Lock()
		s.closing = true
		var all []*session
		for _, live := range s.sessions {
			all = append(all, live)
		}
		s.mu.Unlock()
		if cause == nil {
			cause = errStopping
		}
		s.end(cause)
		for _, live := range all {
			live.close("")
		}
		for _, live := range all {
			<-live.closed
			if left := live.report.Left; len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("session %s left %s", live.id, left[0]))
			}
		}
		s.ending.Wait()
		s.indexes.close()
		close(s.stopped)
	})
	<-s.stopped
	return err
}

// states counts the live sessions by state.
func (s *Server) states() map[State]int {
	s.mu.Lock()
	var all []*session
	for _, live := range s.sessions {
		all = append(all, live)
	}
	s.mu.Unlock()
	n := map[State]int{}
	for _, live := range all {
		n[live.state()]++
	}
	return n
}

// live gives a session of this server that has not ended, or nil.
func (s *Server) live(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}
