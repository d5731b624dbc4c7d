package sandbox

import (
	"context"
	"time"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Creator creates sandboxes. It is safe for concurrent use.
type Creator interface {
	// Create starts a sandbox and returns it running and attested; the caller
	// must call Destroy. If it fails, it leaves nothing behind. Cancelling ctx
	// stops the creation, but does not affect a sandbox that was returned.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
}

// Backend creates sandboxes of one kind. It is safe for concurrent use.
type Backend interface {
	Creator
	// Name returns "docker", "gvisor" or "runc".
	Name() string
	// Check reports whether the backend could start a sandbox now. It contacts
	// the engine, or finds and runs the runtime, but starts no sandbox. Its
	// error wraps ErrUnavailable, ErrNotFound or ErrUnsupported and contains a
	// hint.
	Check(ctx context.Context) (Info, error)
	// Sweep removes what sandboxes of dead owners left behind and returns what
	// it removed. It touches nothing that a live Caisson owns, and continues
	// after an error.
	Sweep(ctx context.Context) ([]Orphan, error)
	// List returns the existing sandboxes, whether their owners live or not. It
	// returns those it found along with any error.
	List(ctx context.Context) ([]Listing, error)
}

// Sandbox is one running container. Its methods are safe for concurrent use.
type Sandbox interface {
	// ID returns the engine's or runtime's name of the container.
	ID() string
	State() State
	// Attestation returns what was observed when the sandbox started.
	Attestation() Attestation
	// Start starts a command and returns without waiting for it. Cancelling
	// ctx, during or after Start, cancels the command: it and everything it
	// started get SIGTERM and, after the grace period, SIGKILL. Start returns
	// ErrInvalid for an invalid Command. If the program can't be executed,
	// Start returns no error, and the exit status is 126 or 127.
	Start(ctx context.Context, cmd Command) (Process, error)
	// Apply makes one change to the workspace with the commands' identity. It
	// returns a *workspace.Error for an invalid path.
	Apply(ctx context.Context, op workspace.Op) (workspace.Change, error)
	// Ping waits for an answer from the guest. It returns ErrLost if the
	// sandbox is gone or does not answer, and ErrState if it is not running.
	Ping(ctx context.Context) error
	// View returns the workspace as commands see it, for reads by the host. It
	// is nil in bind mode, where commands see the host directory itself. After
	// the sandbox has ended, its methods return ErrLost.
	View() workspace.View
	// Service returns the service that Create started, or nil if the Spec has
	// none.
	Service() ServiceProcess
	// Collect copies what changed since ModeCopy sent the directory into the
	// upper layer, in the form that an overlay would have. It may be called
	// again, and while commands run: a file that is being written may then be
	// in either state. It returns ErrState in other modes.
	Collect(ctx context.Context) error
	// Done is closed when the sandbox has stopped. Err then returns nil after
	// Destroy, and otherwise an error that wraps ErrLost, and a
	// *limits.ExceededError if a limit ended the sandbox.
	Done() <-chan struct{}
	Err() error
	// Destroy kills all processes, removes the container and everything made
	// for it, and waits until that is done. It is idempotent, works in every
	// state and during Start, and returns an error that names what it could not
	// remove.
	Destroy(ctx context.Context) error
}

// Process is a command that was started.
type Process interface {
	// Wait waits for the command to end and returns its result. Further calls
	// return the same. An error means that the sandbox was lost (ErrLost),
	// never that the command failed; Exit has the captured output even then.
	Wait() (Exit, error)
}

// Info describes a backend.
type Info struct {
	Backend        string `json:"backend"`
	Runtime        string `json:"runtime"`         // runc, runsc, …
	RuntimeVersion string `json:"runtime_version"` // as the runtime prints it
	RuntimePath    string `json:"runtime_path,omitempty"`
	EngineVersion  string `json:"engine_version,omitempty"` // docker only
	// Local reports whether the backend shares this machine's file system, as
	// far as that is known before a container runs.
	Local bool `json:"local"`
	// Rootless reports whether the runtime runs without root on the host.
	Rootless bool `json:"rootless"`
	// Isolation is what the next sandbox would have, or "" if it is not known
	// before a container runs.
	Isolation Isolation `json:"isolation,omitempty"`
	// NoNamespaces is why Isolation is IsolationProcess, or "" if that was asked
	// for.
	NoNamespaces string `json:"no_namespaces,omitempty"`
	// Remapped reports whether the engine remaps its containers' IDs
	// (userns-remap).
	Remapped bool `json:"remapped,omitempty"`
	// Lost names the protections and limits that this host lacks.
	Lost []string `json:"lost,omitempty"`
}

// Isolation is what lies between a sandbox and the host, apart from the kernel
// that commands see.
type Isolation string

const (
	// IsolationNamespaces means Linux namespaces and a root directory of its
	// own.
	IsolationNamespaces Isolation = "namespaces"
	// IsolationProcess means that gVisor's kernel and file server run as
	// processes of Caisson's own user in Caisson's own namespaces, confined by
	// seccomp and Landlock. It needs no privilege, so it works in any container
	// job. A process that makes such a sandbox stays the parent of all its orphaned
	// descendants (PR_SET_CHILD_SUBREAPER), to wait for gVisor's. It must wait for
	// others that it may have.
	IsolationProcess Isolation = "process"
)

// Orphan is something that Sweep removed because its owner is dead.
type Orphan struct {
	Kind    string `json:"kind"` // container, volume, cgroup, mount, directory, placeholder
	Name    string `json:"name"`
	Session string `json:"session,omitempty"`
	Owner   string `json:"owner"` // pid and start time of the dead owner
}

// Run starts a command and waits for it.
func Run(ctx context.Context, s Sandbox, cmd Command) (Exit, error) {
	p, err := s.Start(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	return p.Wait()
}

// Listing describes one sandbox on this machine. The state comes from the
// engine or runtime, the rest from what its maker recorded.
//
//	{"session":"ses_…","backend":"runc","container":"caisson-ses_…","image":"host","workspace":"/home/me/p","since":"2026-11-20T10:00:00Z","state":"running","owner":{"pid":4711,"start_time":123456,"state":"alive"},"memory_bytes":9437184}
type Listing struct {
	Session string `json:"session"`
	Backend string `json:"backend"`
	// Container is the engine's or runtime's name for the container.
	Container string `json:"container"`
	// Image and Workspace are as requested, or "" if unknown.
	Image     string `json:"image"`
	Workspace string `json:"workspace"`
	// Since is the time of the request, or zero if unknown.
	Since time.Time   `json:"since,omitzero"`
	State ListedState `json:"state"`
	Owner ListedOwner `json:"owner"`
	// MemoryBytes is the memory now charged to its cgroup, or 0 if unknown.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// Foreign reports whether the sandbox belongs to another state directory,
	// and so to another user or machine.
	Foreign bool `json:"foreign,omitempty"`
	// GivenUp reports whether its live owner failed to remove it, so that any
	// process may.
	GivenUp bool `json:"given_up,omitempty"`
}

// ListedOwner is the Caisson process that created a sandbox.
type ListedOwner struct {
	PID int `json:"pid"`
	// Start is the process's start time in clock ticks since boot (field 22 of
	// /proc/PID/stat). It tells the process from a later one with the same PID.
	Start uint64 `json:"start_time"`
	// State is "alive", "dead", or "unknown" if the process runs on another
	// machine or in another PID namespace.
	State string `json:"state"`
}

// ListedState is a sandbox's current state, according to its engine or runtime.
type ListedState string

// The states: those in the OCI runtime specification, and three more.
const (
	ListedCreated ListedState = "created"
	ListedRunning ListedState = "running"
	ListedPaused  ListedState = "paused"
	ListedStopped ListedState = "stopped"
	// ListedGone means that the engine or runtime has no such container. Other
	// things that its maker recorded may still exist.
	ListedGone ListedState = "gone"
	// ListedUnknown means that the engine or runtime could not be queried.
	ListedUnknown ListedState = "unknown"
)

// ExecSocket is the name, in Spec.Dir, of the socket on which a session accepts
// its user's commands. The maker of the session creates and removes it; Sweep
// removes a dead maker's.
const ExecSocket = "exec.sock"
