package sandbox

import (
	"context"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Creator makes sandboxes. It is safe for concurrent use.
type Creator interface {
	// Create makes and starts one sandbox and returns it running and
	// attested. On an error nothing is left. The caller must Destroy it.
	// Cancelling ctx stops the making; it does not affect a sandbox that was
	// returned.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
}

// Backend makes sandboxes of one kind. It is safe for concurrent use.
type Backend interface {
	Creator
	// Name is "docker", "gvisor" or "runc".
	Name() string
	// Check says whether the backend could start a sandbox now: it reaches
	// the engine, finds and asks the runtime, starts nothing. A failure wraps
	// ErrUnavailable, ErrNotFound or ErrUnsupported and says what would mend it.
	Check(ctx context.Context) (Info, error)
	// Sweep removes what sandboxes of dead owners left, and nothing that a
	// live Caisson owns. It returns what it removed, and goes on after an error.
	Sweep(ctx context.Context) ([]Leftover, error)
	// List finds the sandboxes that there are, of live owners and of dead
	// ones, and changes nothing. What it found is returned beside an error.
	List(ctx context.Context) ([]Listing, error)
}

// Sandbox is one running container. Its methods are safe for concurrent use.
type Sandbox interface {
	// ID names the container for the engine or runtime.
	ID() string
	// State is where the sandbox is in its life.
	State() State
	// Attestation is what was observed and read back once it ran.
	Attestation() Attestation
	// Start starts a command and returns without waiting for it. Cancelling
	// ctx, before or after Start returned, cancels the command: SIGTERM, the
	// grace period, SIGKILL, to everything that it started. A Command that
	// can't be run as given fails with ErrInvalid; a program that can't be
	// executed is no error but an exit status of 126 or 127.
	Start(ctx context.Context, cmd Command) (Process, error)
	// Apply makes one change to the workspace as the commands' identity. It
	// fails with a *workspace.Error for what is wrong with the path.
	Apply(ctx context.Context, op workspace.Op) (workspace.Change, error)
	// Ping asks for a sign of life and returns when it came. It fails with
	// ErrLost if the sandbox is gone or silent, and with ErrState if it does
	// not run.
	Ping(ctx context.Context) error
	// View is the workspace as commands see it, for reads of the host. It is
	// nil in bind mode, where the held folder itself is what they see. It ends
	// with the sandbox, and fails with ErrLost then.
	View() workspace.View
	// Done is closed when the sandbox has stopped; Err then says why: nil
	// after Destroy, an error wrapping ErrLost (and a *limits.ExceededError
	// where the sandbox died of its limits) otherwise.
	Done() <-chan struct{}
	Err() error
	// Destroy kills what runs, removes the container and everything that was
	// made for it, and waits for that. It is idempotent, works in every state
	// and during Start, and reports what it could not remove.
	Destroy(ctx context.Context) error
}

// Process is one command that was started.
type Process interface {
	// Wait waits for the end and returns what happened. A second call gives
	// the same answer. The error is the loss of the sandbox (ErrLost), never
	// the command's failure; what was captured is in Exit even then.
	Wait() (Exit, error)
}

// Info is what a backend knows about itself before it runs anything.
type Info struct {
	Backend        string `json:"backend"`
	Runtime        string `json:"runtime"`         // runc, runsc, …
	RuntimeVersion string `json:"runtime_version"` // as it prints it
	RuntimePath    string `json:"runtime_path,omitempty"`
	EngineVersion  string `json:"engine_version,omitempty"` // docker only
	// Local says that the backend shares this machine's file system, as far
	// as can be told before a container ran.
	Local bool `json:"local"`
	// Rootless says that the runtime runs without root on the host.
	Rootless bool `json:"rootless"`
	// Lost names protections and limits that this host can't give.
	Lost []string `json:"lost,omitempty"`
}

// Leftover is one thing that a dead owner left and Sweep removed.
type Leftover struct {
	Kind    string `json:"kind"` // container, mount, cgroup, folder, placeholder, process
	Name    string `json:"name"`
	Session string `json:"session,omitempty"`
	Owner   string `json:"owner"` // pid and start time of the dead owner
}
