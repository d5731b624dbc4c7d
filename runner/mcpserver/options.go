package mcpserver

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/redact"
)

// Defaults of [Options].
const (
	// DefaultMaxSessions is the number of clients over HTTP at once. Each may
	// hold a container.
	DefaultMaxSessions = 16
	// DefaultIdleTime is how long the session of a client over HTTP is kept
	// without a request. Its container holds memory meanwhile.
	DefaultIdleTime = time.Hour
)

const (
	// maxMessageBytes bounds a message: a tool's input, of at most 4 MiB, with
	// its characters escaped.
	maxMessageBytes = 16 << 20
	// maxCalls bounds the calls of one client that run or wait. More are
	// refused.
	maxCalls = 64
	// rootsTime bounds the wait for the client's roots.
	rootsTime = 10 * time.Second
	// drainTime bounds the wait for responses that are still being written once
	// a session has ended.
	drainTime = 5 * time.Second
)

// Options are the options of a server. Open is required, and Admit for HTTP.
type Options struct {
	// Open opens a client's session, whose calls are made for its Options.User.
	// It is called when the client first asks for tools, and again after an
	// error. The server closes the session.
	Open func(ctx context.Context, c Client) (*Session, error)
	// AsksRoots reports whether Open needs the client's roots.
	AsksRoots bool
	// Admit returns the user who sends an HTTP request, or writes an error
	// response. It must check Host, Origin and token.
	Admit func(w http.ResponseWriter, r *http.Request) (runner.User, bool)
	// Describe returns what a client is told about an error of Open, or about a
	// call without a result. Nil uses the error's text.
	Describe func(err error) string
	// Ended receives the report of each closed session. Nil does nothing.
	Ended func(runner.Report)

	// MaxSessions and IdleTime bound what clients over HTTP hold. Zero means
	// the default.
	MaxSessions int
	IdleTime    time.Duration

	// Version is the program's version.
	Version string
	// Logger gets messages for operators. Nil discards them.
	Logger *zap.Logger
}

// Client is a client that asks for a session.
type Client struct {
	// User is who Admit returned. It is zero over standard input and output.
	User runner.User
	// Name and Version are what the client claims.
	Name, Version string
	// Roots are the URIs of its roots, if [Options].AsksRoots is set. Nil if it
	// has none.
	Roots []string
}

// Session is a client's open session.
type Session struct {
	Runner *runner.Session
	// Redact removes secrets from results and progress.
	Redact *redact.Redactor
	// Done releases what the session used, after it was closed. Nil does
	// nothing.
	Done func()
}

func (o *Options) setDefaults() {
	o.MaxSessions = cmp.Or(o.MaxSessions, DefaultMaxSessions)
	o.IdleTime = cmp.Or(o.IdleTime, DefaultIdleTime)
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
