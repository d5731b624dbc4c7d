package sandbox

import "time"

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
