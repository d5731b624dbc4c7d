package sandbox

import (
	"io"
	"time"
)

// Command is a program to run in a sandbox. Its readers and writers are used
// until the process has ended.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is
	// looked up in Env's PATH. An element must not contain a NUL or exceed 128
	// KiB (Linux's MAX_ARG_STRLEN).
	Argv []string
	// Env is the whole environment as NAME=value; nothing is inherited. Nil
	// means the sandbox's own environment: the [Environment] for the image's
	// variables, then Spec.Env.
	Env []string
	// Variables are added to the environment and replace variables of the same
	// name.
	Variables []string
	// Separate leaves the variables of Spec.Env and of the [EgressPlan], which
	// are the agent's, out of the sandbox's own environment.
	Separate bool
	// Proxy adds the variables for the command's proxy and for the certificates
	// to trust, and replaces each [ProxyPlaceholder] in Variables. It has no
	// effect without an EgressPlan.
	Proxy bool
	// Dir is the working directory, an absolute path in the container. It is at
	// or below the workspace's mount point, which is the default, or is the
	// home of an Identity other than 0. Symlinks that leave the workspace are
	// not followed.
	Dir string
	// Identity is the user of the command: 0 is the agent, 1 to MaxIdentity are
	// others. Commands of one identity can't signal or trace another's, nor
	// read their environment, memory or descriptors. An identity other than 0
	// can do in the workspace what the permission bits for others allow, and
	// creates no files in it (docs/design/guest.md#identities). With a nil Env
	// it gets its own HOME and TMPDIR. Start returns ErrInvalid for a number
	// out of range, and ErrUnsupported if the attestation's Identities is 1.
	Identity int
	// NoLinks makes Start return ErrInvalid if Dir contains a symlink, even one
	// that stays in the workspace.
	NoLinks bool
	// Stdin is copied to the command; nil means /dev/null.
	Stdin io.Reader
	// Stdout and Stderr receive the live output in order, up to Output.Live
	// bytes per stream; nil discards it. One goroutine per stream writes, so a
	// blocked writer delays only its own stream.
	Stdout, Stderr io.Writer
	// Terminal, if not nil, gives the command a new terminal. It is the
	// command's standard input, output and error and its controlling terminal,
	// and belongs to its user. Its output is written to Stdout, and Stderr gets
	// nothing. Stdin is typed, control characters such as ^C included; its end
	// types the terminal's end-of-file character. With a nil Stdin nothing is
	// typed, and reads wait.
	Terminal *Terminal
	// NotifyNumber, if not nil, is called before the command starts with the
	// number by which [EgressConn.Command] names it. It must return at once. A
	// number is reused after its command has ended.
	NotifyNumber func(number int)
	// Output bounds the output to keep.
	Output OutputLimits
	// MaxTasks bounds the command's processes and threads, MaxMemory their
	// memory in bytes, not counting memory shared with files. Zero means only
	// the sandbox's limit applies. The guest measures about twice per second
	// and kills a command that exceeds a bound. Faster growth can use up the
	// sandbox's own limit before that.
	MaxTasks  int
	MaxMemory int64
	// Timeout bounds the wall time; zero means the session's
	// Resources.CommandTime. It ends the command like a cancellation and sets
	// TimedOut in the status.
	Timeout time.Duration
	// Grace overrides Spec.Grace unless it is zero. If the cause of the
	// cancellation is a *limits.ExceededError of kind disk, there is no grace
	// period.
	Grace time.Duration
}

// Terminal is the terminal of a command.
type Terminal struct {
	TerminalSize
	// Resizes delivers later sizes, of which the last one counts. It may be nil.
	// It is never closed, and read until the command has ended.
	Resizes <-chan TerminalSize
}

// TerminalSize is a terminal's size in character cells; zero means unknown.
type TerminalSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// OutputLimits bounds the output of one command, per stream. Output beyond the
// limits is still read, counted and hashed in the container.
type OutputLimits struct {
	// Live is the number of bytes sent to the writers; zero means
	// [DefaultLiveBytes].
	Live int64
	// Tail is how many of the last bytes the guest keeps once Live is used up;
	// zero means [DefaultTailBytes].
	Tail int
}

// Defaults of [OutputLimits]. A session stores at most DefaultLiveBytes per
// stream on disk. DefaultTailBytes fits into the 50,000 bytes that a model is
// shown.
const (
	DefaultLiveBytes = 16 << 20
	DefaultTailBytes = 32 << 10
)
