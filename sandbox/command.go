package sandbox

import (
	"io"
	"time"
)

// Command is a program to run in a sandbox. Start reads it. Its readers and
// writers are used until the process has ended.
type Command struct {
	// Argv is the program and its arguments, at least one element. A program
	// without a slash is looked up in the PATH of Env. An element must not
	// contain a NUL or be longer than 128 KiB (MAX_ARG_STRLEN of Linux).
	Argv []string
	// Env is the whole environment as NAME=value; nothing is inherited. Nil
	// means the sandbox's own: the [Environment] for the variables that its
	// image declares, and those of Spec.Env.
	Env []string
	// Variables are added to Env, or to the sandbox's own environment, in place of those
	// of the same name.
	Variables []string
	// Separate leaves the variables of Spec.Env and of the [EgressPlan] out of the
	// sandbox's own environment: those of the agent's commands.
	Separate bool
	// Proxy adds the variables of the command's proxy, and of the certificates to trust,
	// to the environment in a sandbox with an EgressPlan, and replaces each
	// [ProxyPlaceholder] in Variables.
	Proxy bool
	// Dir is the working directory, an absolute path in the container at or
	// below the workspace's mount point, which empty means, or the home of another
	// Identity than 0. Symlinks that leave the workspace are not followed.
	Dir string
	// Identity is the user of the command: 0 is the agent's, 1 to MaxIdentity
	// are others. Commands of one identity can't read the environment, memory
	// or descriptors of another's, nor signal or trace them. Another identity
	// than 0 reaches of the workspace what its permission bits for others
	// allow, and creates no files in it (docs/design/guest.md#identities). A nil Env
	// has its own HOME and TMPDIR. Start returns ErrInvalid for a number out of
	// range, and ErrUnsupported where the attestation's Identities is 1.
	Identity int
	// NoLinks makes Start return ErrInvalid if Dir contains a symlink, even one
	// that stays in the workspace.
	NoLinks bool
	// Stdin is copied to the command; nil means /dev/null.
	Stdin io.Reader
	// Stdout and Stderr receive the live output in order, up to Output.Live
	// bytes per stream. One goroutine per stream writes. Nil discards the
	// output. A writer that blocks delays only this stream of this command.
	Stdout, Stderr io.Writer
	// NotifyNumber is called before the command starts with its number, by which
	// [EgressConn.Command] names it; nil means that it is not needed. It must
	// return at once. A number is used again after its command.
	NotifyNumber func(number int)
	// Output bounds the output that is kept.
	Output OutputLimits
	// MaxTasks and MaxMemory bound the processes and threads of the command, and what they
	// have in memory without what they share with files, in bytes. Zero is no bound beside
	// that of the sandbox. The guest measures about twice per second, and kills a command
	// that exceeds one: what grows faster can use the sandbox's own limit until then.
	MaxTasks  int
	MaxMemory int64
	// Timeout bounds the wall time; zero means the session's
	// Resources.CommandTime. It ends the command like a cancellation, and sets
	// TimedOut of the status.
	Timeout time.Duration
	// Grace overrides Spec.Grace; zero means Spec.Grace. There is no grace
	// period if the cause of the cancellation is a *limits.ExceededError of
	// kind disk.
	Grace time.Duration
}

// OutputLimits bounds the output of one command, per stream. Output beyond the
// limits is still read, counted and hashed in the container, but not kept.
type OutputLimits struct {
	// Live is the number of bytes per stream that are sent to the writers; zero
	// means [DefaultLiveBytes].
	Live int64
	// Tail is the number of last bytes per stream that the guest keeps once
	// Live is used up; zero means [DefaultTailBytes].
	Tail int
}

// Defaults of [OutputLimits]. A session stores at most DefaultLiveBytes per
// stream of a command on disk. DefaultTailBytes fits into the 50,000 bytes that
// a model is shown.
const (
	DefaultLiveBytes = 16 << 20
	DefaultTailBytes = 32 << 10
)
