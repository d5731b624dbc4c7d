package sandbox

import (
	"context"
	"time"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Creator creates sandboxes. It is safe for concurrent use.
type Creator interface {
	// Create creates and starts a sandbox, and returns it running and attested.
	// After an error nothing is left. The caller must call Destroy. Cancelling
	// ctx stops the creation, but does not affect a sandbox that was returned.
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
	// Sweep removes what sandboxes of dead owners left, and nothing that a live
	// Caisson owns. It returns what it removed, and continues after an error.
	Sweep(ctx context.Context) ([]Orphan, error)
	// List returns the existing sandboxes of live and of dead owners, and
	// changes nothing. It returns those that it found along with an error.
	List(ctx context.Context) ([]Listing, error)
}

// Sandbox is one running container. Its methods are safe for concurrent use.
type Sandbox interface {
	// ID returns the engine's or runtime's name of the container.
	ID() string
	// State returns the current state of the sandbox.
	State() State
	// Attestation returns what was observed and read back when the sandbox
	// started.
	Attestation() Attestation
	// Start starts a command and returns without waiting for it. Cancelling
	// ctx, during or after Start, cancels the command: it and everything that
	// it started get SIGTERM and, after the grace period, SIGKILL. Start
	// returns ErrInvalid for an invalid Command. If the program can't be
	// executed, Start returns no error, and the exit status is 126 or 127.
	Start(ctx context.Context, cmd Command) (Process, error)
	// Apply makes one change to the workspace with the commands' identity. It
	// returns a *workspace.Error for an invalid path.
	Apply(ctx context.Context, op workspace.Op) (workspace.Change, error)
	// Ping waits for an answer of the guest. It returns ErrLost if the sandbox
	// is gone or does not answer, and ErrState if it does not run.
	Ping(ctx context.Context) error
	// View returns the workspace as commands see it, for reads by the host. It
	// is nil in bind mode, in which commands see the held directory itself.
	// After the end of the sandbox its methods return ErrLost.
	View() workspace.View
	// Service returns the service that Create started, nil if the Spec has none.
	Service() ServiceProcess
	// Collect brings what differs from the directory that was sent in ModeCopy
	// into the upper layer, which contains it as that of an overlay does. It may
	// be called again, and while commands run: a file that is being written then
	// is in either state. It returns ErrState in other modes.
	Collect(ctx context.Context) error
	// Done is closed when the sandbox has stopped. Err then returns nil after
	// Destroy, and otherwise an error that wraps ErrLost, and a
	// *limits.ExceededError if a limit ended the sandbox.
	Done() <-chan struct{}
	Err() error
	// Destroy kills all processes, removes the container and everything that
	// was made for it, and waits for that. It is idempotent, works in every
	// state and during Start, and returns an error that names what it could not
	// remove.
	Destroy(ctx context.Context) error
}

// Process is a command that was started.
type Process interface {
	// Wait waits for the end of the command and returns its result. Further
	// calls return the same. The error is the loss of the sandbox (ErrLost),
	// never the command's failure. Exit contains the output that was captured
	// even then.
	Wait() (Exit, error)
}

// Info describes a backend before it runs a sandbox.
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
	// Remapped reports whether the engine remaps the ids of its containers
	// (userns-remap).
	Remapped bool `json:"remapped,omitempty"`
	// Lost names protections and limits that this host lacks.
	Lost []string `json:"lost,omitempty"`
}

// Orphan is one thing that Sweep removed because its owner is dead.
type Orphan struct {
	Kind    string `json:"kind"` // container, process, volume, cgroup, mount, directory, placeholder
	Name    string `json:"name"`
	Session string `json:"session,omitempty"`
	Owner   string `json:"owner"` // pid and start time of the dead owner
}

// Run starts a command and waits for its end.
func Run(ctx context.Context, s Sandbox, cmd Command) (Exit, error) {
	p, err := s.Start(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	return p.Wait()
}

// Listing describes one sandbox on this machine: the notes of its maker and its
// current state by the engine or runtime.
//
//	{"session":"ses_…","backend":"runc","container":"caisson-ses_…","image":"host","workspace":"/home/me/p","since":"2026-11-20T10:00:00Z","state":"running","owner":{"pid":4711,"start_time":123456,"state":"alive"},"memory_bytes":9437184}
type Listing struct {
	Session string `json:"session"`
	Backend string `json:"backend"`
	// Container is the engine's or runtime's name of the container.
	Container string `json:"container"`
	// Image and Workspace are as requested, or "" if they are unknown.
	Image     string `json:"image"`
	Workspace string `json:"workspace"`
	// Since is the time of the request, or zero if it is unknown.
	Since time.Time   `json:"since,omitzero"`
	State ListedState `json:"state"`
	Owner ListedOwner `json:"owner"`
	// MemoryBytes is the memory that is charged to its cgroup now, or 0 if that
	// is unknown.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// Foreign reports whether the sandbox belongs to another state directory,
	// and so to another user or machine.
	Foreign bool `json:"foreign,omitempty"`
	// GivenUp reports whether its live owner could not remove it, so that any
	// process may.
	GivenUp bool `json:"given_up,omitempty"`
}

// ListedOwner is the Caisson process that created a sandbox.
type ListedOwner struct {
	// PID is the process ID.
	PID int `json:"pid"`
	// Start is the start time of the process in clock ticks since boot (field
	// 22 of /proc/PID/stat). It distinguishes the process from a later one with
	// the same PID.
	Start uint64 `json:"start_time"`
	// State is "alive", "dead", or "unknown" if the process runs on another
	// machine or in another PID namespace.
	State string `json:"state"`
}

// ListedState is the current state of a listed sandbox by the engine or
// runtime.
type ListedState string

// The states: those of the OCI runtime specification, and three more.
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

// ExecSocket is the name, in Spec.Dir, of the socket on which the maker of a
// session accepts commands of its user. The maker creates and removes it. A
// Sweep removes the socket of a dead maker.
const ExecSocket = "exec.sock"
