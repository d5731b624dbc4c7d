package sandbox

import "time"

// Listing is one sandbox that was found on this machine: what its maker noted,
// and what the engine or runtime says of it now.
//
//	{"session":"ses_…","backend":"runc","container":"caisson-ses_…","image":"host","workspace":"/home/me/p","since":"2026-11-20T10:00:00Z","state":"running","owner":{"pid":4711,"start_time":123456,"state":"alive"},"memory_bytes":9437184}
type Listing struct {
	Session string `json:"session"`
	Backend string `json:"backend"`
	// Container is what the engine or runtime calls it.
	Container string `json:"container"`
	// Image and Workspace are as they were asked for; "" where they are not known.
	Image     string `json:"image"`
	Workspace string `json:"workspace"`
	// Since is when it was asked for; zero where that is not known.
	Since time.Time   `json:"since,omitzero"`
	State ListedState `json:"state"`
	Owner ListedOwner `json:"owner"`
	// MemoryBytes is what its cgroup is charged with now, 0 where that can't
	// be told.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// Foreign says that another state folder, so another user or machine,
	// made it.
	Foreign bool `json:"foreign,omitempty"`
	// GivenUp says that its live owner could not remove it and anybody may.
	GivenUp bool `json:"given_up,omitempty"`
}

// ListedOwner is the Caisson process that made a sandbox.
type ListedOwner struct {
	PID int `json:"pid"`
	// Start is when it started, in clock ticks since boot (field 22 of
	// /proc/PID/stat), which tells it from a later process of that number.
	Start uint64 `json:"start_time"`
	// State is "alive", "dead", or "unknown" where it runs on another machine
	// or in another PID namespace.
	State string `json:"state"`
}

// ListedState is where a listed sandbox is in its life, as the engine or
// runtime says now.
type ListedState string

// The states: those of the OCI runtime specification, and three of a list's own.
const (
	ListedCreated ListedState = "created"
	ListedRunning ListedState = "running"
	ListedPaused  ListedState = "paused"
	ListedStopped ListedState = "stopped"
	// ListedGone: the engine or runtime has no such container; what its maker
	// noted besides may still be there.
	ListedGone ListedState = "gone"
	// ListedUnknown: the engine or runtime could not be asked.
	ListedUnknown ListedState = "unknown"
)

// ExecSocket is the name, in Spec.Dir, of the socket on which the maker of a
// session takes commands of its user. The maker makes and removes it; a Sweep
// removes what a dead one left.
const ExecSocket = "exec.sock"
