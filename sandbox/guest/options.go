package guest

import (
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Options configure a connection to a guest.
type Options struct {
	// Conn is the container's standard input (Write) and output (Read), each
	// one plain byte stream without the engine's own framing. Dial always takes
	// ownership: Conn.Close, a failed Dial and the loss of the connection close
	// it. Its Close must unblock Read and Write; closing it makes the guest
	// exit.
	Conn io.ReadWriteCloser
	// Config is sent to the guest; see [NewConfig]. Its Protocol is filled in.
	Config wire.Config
	// Env is the environment of a command that names none, as NAME=value; nil
	// means sandbox.DefaultEnv. PWD is each command's own.
	Env []string
	// NumberEnv adds the variables of the command with a number to Env; nil adds
	// none. Commands have numbers if Config.Egress is not nil.
	NumberEnv func(env []string, number int) []string
	// BaseEnv is the environment of a command that is Separate; see sandbox.Command.
	BaseEnv []string
	// AccessEnv returns the environment of the command with a number and Proxy, and with
	// these variables. Nil adds nothing else.
	AccessEnv func(env, variables []string, number int) []string
	// Timeout bounds a command that names no timeout of its own; zero means
	// that of limits.DefaultResources. Grace is for one that names no grace
	// period; zero means sandbox.DefaultGrace.
	Timeout, Grace time.Duration
	// AnswerTime is how long the guest may take to answer a hello, a ping, a
	// start or a cancel (after its grace period) before the connection is lost;
	// zero means [DefaultAnswerTime].
	AnswerTime time.Duration
	// Logger gets what can't be returned; nil discards.
	Logger *zap.Logger
}

// DefaultAnswerTime is how long a guest may take to answer before it counts as
// lost: long enough for a machine under a fork bomb, and the bound of the
// design for cancelling.
const DefaultAnswerTime = 30 * time.Second

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	o.Config.Protocol = wire.Version
	if o.Env == nil {
		o.Env = sandbox.DefaultEnv()
	}
	if o.Timeout == 0 {
		o.Timeout = limits.DefaultResources().CommandTime
	}
	if o.Grace == 0 {
		o.Grace = sandbox.DefaultGrace
	}
	if o.AnswerTime == 0 {
		o.AnswerTime = DefaultAnswerTime
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// The range of supplementary gids that mark commands, unless a backend's user
// namespace maps another: above those that distributions assign, below 65536,
// so that the usual range of one namespace contains it.
const (
	DefaultGIDBase  = 30000
	DefaultGIDCount = 20000
)

// NewConfig makes the guest's configuration from a spec: the identity and
// paths of the contract, the spec's limits, the default gid range. A backend
// changes what differs (CommandUID, IdentityBase, SingleUID, the gid range). The spec's times
// go into Options.Timeout and Options.Grace.
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
		MemoryBytes:   spec.Resources.MemoryBytes,
		PIDs:          spec.Resources.PIDs,
		MilliCPUs:     spec.Resources.MilliCPUs,
	}
}
