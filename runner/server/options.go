package server

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
)

// Defaults of [Options].
const (
	// DefaultMaxSessions is the number of sessions that may be live at once. Each
	// may hold a container.
	DefaultMaxSessions = 16
	// DefaultMaxStreams is the number of event streams and copies of files that one
	// token may have open.
	DefaultMaxStreams = 64
	// DefaultMaxTransfer is the size of one copy of files into a sandbox or out of it.
	DefaultMaxTransfer = 1 << 30
	// DefaultSandboxTTL is how long a sandbox without a model stays without a command,
	// and DefaultMaxSandboxTTL the longest such time that a client may ask for.
	DefaultSandboxTTL    = time.Hour
	DefaultMaxSandboxTTL = 24 * time.Hour
	// DefaultIdleTime is how long a session without a turn is kept. Its container
	// holds memory meanwhile.
	DefaultIdleTime = time.Hour
)

// Options are the options of a server. StateDir, Prepare, Resume, PrepareSandbox and
// Tokens are required.
type Options struct {
	// StateDir is the state directory, with the sessions of all Caissons of its
	// user.
	StateDir string
	// Prepare returns the options of a session that a client requests. The server
	// adds Task, Broker, Mirror, Live and Force. done releases the resources after
	// the session. The error of a request that is not allowed is a [PrepareError];
	// other errors are as those of runner.Open.
	Prepare func(ctx context.Context, r NewSession) (o runner.Options, done func(), err error)
	// Resume is Prepare for a session that goes on from its records, whose directory is
	// reopened. An error that wraps one of sessiondir.Reopen is a conflict.
	Resume func(ctx context.Context, session string, r ResumeSession) (o runner.Options, done func(), err error)
	// PrepareSandbox is Prepare for a sandbox without a model.
	PrepareSandbox func(ctx context.Context, r NewSandbox) (o runner.Options, done func(), err error)
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
	// MaxSessions, MaxStreams, MaxTransfer (in bytes), IdleTime and MaxSandboxTTL bound
	// the resources of clients; zero means the default.
	MaxSessions, MaxStreams int
	MaxTransfer             int64
	IdleTime, MaxSandboxTTL time.Duration
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
	headerTime, bodyTime, copyTime time.Duration
}

// headerTime and bodyTime bound the time in which a request's headers and its body
// arrive.
const (
	headerTime = 10 * time.Second
	bodyTime   = 10 * time.Second
	// copyTime is how long a client that copies files may pause.
	copyTime = time.Minute
)

// setDefaults replaces zero values by the defaults.
func (o *Options) setDefaults() {
	o.MaxSessions = cmp.Or(o.MaxSessions, DefaultMaxSessions)
	o.MaxStreams = cmp.Or(o.MaxStreams, DefaultMaxStreams)
	o.IdleTime = cmp.Or(o.IdleTime, DefaultIdleTime)
	o.MaxSandboxTTL = cmp.Or(o.MaxSandboxTTL, DefaultMaxSandboxTTL)
	o.headerTime = cmp.Or(o.headerTime, headerTime)
	o.bodyTime = cmp.Or(o.bodyTime, bodyTime)
	o.copyTime = cmp.Or(o.copyTime, copyTime)
	o.MaxTransfer = cmp.Or(o.MaxTransfer, DefaultMaxTransfer)
}
