package guest

import (
	"cmp"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Options configures a connection to a guest.
type Options struct {
	// Conn is the container's standard input (Write) and output (Read), each a
	// plain byte stream without the engine's framing. Dial takes ownership:
	// Conn.Close, a failed Dial and the loss of the connection close it. Its
	// Close must unblock Read and Write, and makes the guest exit.
	Conn io.ReadWriteCloser
	// Config is sent to the guest; see [NewConfig]. Dial sets its Protocol.
	Config wire.Config
	// Env is the environment of commands that name none, as NAME=value; nil
	// means sandbox.DefaultEnv. PWD is set for each command.
	Env []string
	// SessionEnv are variables, as NAME=value, that override Env and Plan, except
	// for a command with Separate; see sandbox.Command.
	SessionEnv []string
	// Plan adds variables for a command's number; nil adds none. Commands have
	// numbers if Config.Egress is not nil.
	Plan *sandbox.EgressPlan
	// Timeout and Grace apply to commands without their own; zero means
	// limits.DefaultResources and sandbox.DefaultGrace.
	Timeout, Grace time.Duration
	// AnswerTime bounds the guest's answer to a hello, a ping, a start or a
	// cancel (after its grace period) before the connection is lost; zero means
	// [DefaultAnswerTime].
	AnswerTime time.Duration
	// Logger receives errors that can't be returned; nil discards them.
	Logger *zap.Logger
}

// DefaultAnswerTime is long enough for a machine under a fork bomb.
const DefaultAnswerTime = 30 * time.Second

func (o Options) withDefaults() Options {
	o.Config.Protocol = wire.Version
	if o.Env == nil {
		o.Env = sandbox.DefaultEnv()
	}
	o.Timeout = cmp.Or(o.Timeout, limits.DefaultResources().CommandTime)
	o.Grace = cmp.Or(o.Grace, sandbox.DefaultGrace)
	o.AnswerTime = cmp.Or(o.AnswerTime, DefaultAnswerTime)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// The range of supplementary gids that mark commands, unless a backend's user
// namespace maps another one. It is above the gids that distributions assign
// and below 65536, so a namespace's usual range contains it.
const (
	DefaultGIDBase  = 30000
	DefaultGIDCount = 20000
)

// NewConfig returns the guest's configuration for a spec, with the usual
// identity, paths and gid range. A backend changes what differs.
// Options.Timeout and Options.Grace take the spec's times.
func NewConfig(spec sandbox.Spec) wire.Config {
	return wire.Config{
		Protocol:      wire.Version,
		CommandUID:    sandbox.CommandUID,
		CommandGID:    sandbox.CommandGID,
		IdentityBase:  uint32(sandbox.IdentityBase(sandbox.CommandUID, sandbox.CommandGID)),
		IdentityCount: sandbox.MaxIdentity,
		IdentityDir:   sandbox.IdentityDir,
		GIDBase:       DefaultGIDBase,
		GIDCount:      DefaultGIDCount,
		Workspace:     spec.Workspace.MountPoint(),
		HostWorkspace: spec.Workspace.Path,
		MilliCPUs:     spec.Resources.MilliCPUs,
	}
}
