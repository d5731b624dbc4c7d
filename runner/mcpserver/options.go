package mcpserver

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/redact"
)

// Defaults of [Options].
const (
	// DefaultMaxSessions is the number of clients over HTTP at once. Each may hold a
	// container.
	DefaultMaxSessions = 16
	// DefaultIdleTime is how long the session of a client over HTTP is kept without a
	// request of it. Its container holds memory meanwhile.
	DefaultIdleTime = time.Hour
)

const (
	// maxMessageBytes bounds a message: an input of a tool, whose bound is 4 MiB, with
	// its characters escaped.
	maxMessageBytes = 16 << 20
	// maxCalls bounds the calls of one client that run or wait. More are refused.
	maxCalls = 64
	// rootsTime bounds the wait for the client's roots.
	rootsTime = 10 * time.Second
	// drainTime bounds the wait for responses that are still being written once a
	// session has ended.
	drainTime = 5 * time.Second
)

// Options are the options of a server. Open is required, and Admit for HTTP.
type Options struct {
	// Open opens the session of a client, whose calls are those of its Options.User. It
	// is called when the client asks for tools first, and again after an error. The
	// server closes the session.
	Open func(ctx context.Context, c Client) (*Session, error)
	// AsksRoots reports whether Open needs the client's roots.
	AsksRoots bool
	// Admit returns the user who sends a request over HTTP, or writes the response that
	// refuses it. Its checks are those of Host, Origin and token.
	Admit func(w http.ResponseWriter, r *http.Request) (runner.User, bool)
	// Describe returns what a client is told of an error of Open, or of a call that has
	// no result; nil takes the error's text.
	Describe func(err error) string
	// Ended receives the report of each session that was closed; nil does nothing.
	Ended func(runner.Report)

	// MaxSessions and IdleTime bound what clients over HTTP hold; zero means the default.
	MaxSessions int
	IdleTime    time.Duration

	// Version is the program's.
	Version string
	// Logger gets messages for operators; nil discards them.
	Logger *zap.Logger
}

// Client is a client that asks for a session.
type Client struct {
	// User is who Admit returned; it is zero over standard input and output.
	User runner.User
	// Name and Version are those that the client names. It may lie.
	Name, Version string
	// Roots are the URIs of its roots, if [Options].AsksRoots is set; nil if it has none.
	Roots []string
}

// Session is the open session of a client.
type Session struct {
	Runner *runner.Session
	// Redact removes secrets from results and from progress; nil removes none.
	Redact *redact.Redactor
	// Done releases what the session used, after it was closed; nil does nothing.
	Done func()
}

func (o *Options) setDefaults() {
	if o.MaxSessions == 0 {
		o.MaxSessions = DefaultMaxSessions
	}
	if o.IdleTime == 0 {
		o.IdleTime = DefaultIdleTime
	}
	if o.Describe == nil {
		o.Describe = func(err error) string { return err.Error() }
	}
	if o.Ended == nil {
		o.Ended = func(runner.Report) {}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
}
