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
	// DefaultMaxSessions is the number of live sessions. Each may hold a
	// container.
	DefaultMaxSessions = 16
	// DefaultMaxStreams is the number of open event streams and file copies per
	// token.
	DefaultMaxStreams = 64
	// DefaultMaxTransfer is the size in bytes of one copy of files into or out
	// of a sandbox.
	DefaultMaxTransfer = 1 << 30
	// DefaultSandboxTTL is how long a sandbox without a model stays without a
	// command. DefaultMaxSandboxTTL is the longest such time that a client may
	// ask for.
	DefaultSandboxTTL    = time.Hour
	DefaultMaxSandboxTTL = 24 * time.Hour
	// DefaultIdleTime is how long a session without a turn is kept. Its
	// container holds memory meanwhile.
	DefaultIdleTime = time.Hour
)

// Options are the options of a server. StateDir, Prepare, Resume,
// PrepareSandbox, OpenWorkspace and Tokens are required.
type Options struct {
	// StateDir is the state directory. It has the sessions of all Caissons of
	// its user.
	StateDir string
	// Prepare returns the options of a session that a client requests. The
	// server adds Task, Broker, Mirror, Live and Force. done releases the
	// resources after the session. A request that is not allowed returns a
	// [PrepareError]; other errors are like runner.Open's.
	Prepare func(ctx context.Context, r NewSession) (o runner.Options, done func(), err error)
	// Resume is Prepare for a resumed session, and reopens its directory. An
	// error that wraps one of sessiondir.Reopen's is a conflict.
	Resume func(ctx context.Context, session string, r ResumeSession) (o runner.Options, done func(), err error)
	// PrepareSandbox is Prepare for a sandbox without a model.
	PrepareSandbox func(ctx context.Context, r NewSandbox) (o runner.Options, done func(), err error)
	// OpenWorkspace opens the workspace of an ended session, to read or apply
	// its changes. It refuses directories on which sessions can't be started.
	OpenWorkspace func(path string) (*runner.Workspace, error)
	// Shows reports whether clients may see the sessions on a workspace, given
	// its path. It covers live and ended sessions, including other Caissons'
	// sessions. Nil shows all.
	Shows func(workspace string) bool
	// Settle makes sure that nothing writes to an ended session's changes any
	// more, and returns an error if it can't. Nil does nothing.
	Settle func(ctx context.Context, session string) error

	// Tokens are the clients' tokens, with distinct labels.
	Tokens []Token
	// Hosts are names of the server, or names and ports, besides localhost and
	// its addresses.
	Hosts []string
	// MaxSessions, MaxStreams, MaxTransfer (in bytes), IdleTime and
	// MaxSandboxTTL bound the resources of clients; zero means the default.
	MaxSessions, MaxStreams int
	MaxTransfer             int64
	IdleTime, MaxSandboxTTL time.Duration
	// OpenMetrics serves /metrics without a token.
	OpenMetrics bool

	// Logger gets messages for operators, never a token; nil discards them.
	Logger *zap.Logger
	// Force, when closed, destroys the sandboxes of sessions that are being
	// ended, and cancels running applies. Nil never does.
	Force <-chan struct{}

	// Tests set these so short, or so long, that only one of them can end a
	// request.
	headerTime, bodyTime, copyTime, pingTime time.Duration
}

// A request's headers and its body must arrive within headerTime and bodyTime.
const (
	headerTime = 10 * time.Second
	bodyTime   = 10 * time.Second
	// copyTime is how long a client that copies files may pause.
	copyTime = time.Minute
	// pingTime is the time between two pings of a terminal's client, and how
	// long it may take to answer one.
	pingTime = 15 * time.Second
)

func (o *Options) setDefaults() {
	o.MaxSessions = cmp.Or(o.MaxSessions, DefaultMaxSessions)
	o.MaxStreams = cmp.Or(o.MaxStreams, DefaultMaxStreams)
	o.IdleTime = cmp.Or(o.IdleTime, DefaultIdleTime)
	o.MaxSandboxTTL = cmp.Or(o.MaxSandboxTTL, DefaultMaxSandboxTTL)
	o.headerTime = cmp.Or(o.headerTime, headerTime)
	o.bodyTime = cmp.Or(o.bodyTime, bodyTime)
	o.copyTime = cmp.Or(o.copyTime, copyTime)
	o.pingTime = cmp.Or(o.pingTime, pingTime)
	o.MaxTransfer = cmp.Or(o.MaxTransfer, DefaultMaxTransfer)
}
