package overlay

import (
	"errors"
	"os"
	"time"
)

// Names in the folder of the layers.
const (
	UpperDir = "upper"
	WorkDir  = "work"

	baseFile  = "base.json"
	applyFile = "apply.json"
	doneFile  = "applied.json"
	stateFile = "state.json"
	lockFile  = "lock"
)

// MaxEntries bounds the files and folders that are stamped at the beginning of
// a session, and those that its changes may be: a million is five times a large
// repository with its dependencies.
const MaxEntries = 1_000_000

// MaxTextBytes bounds the bytes of their paths and link targets in the same
// way: 134 for each of so many.
const MaxTextBytes = 128 << 20

// Errors of this package; test with errors.Is.
var (
	// ErrBusy: the session still runs, or another apply is under way.
	ErrBusy = errors.New("in use")
	// ErrGone: there are no changes any more: applied, discarded or expired.
	ErrGone = errors.New("no changes are kept")
	// ErrOther: the folder is not the one that the session worked on.
	ErrOther = errors.New("another folder")
	// ErrTooMany: there are more than MaxEntries changes, or more than
	// MaxTextBytes of their paths and link targets, so none is applied.
	ErrTooMany = errors.New("too many changes")
	// ErrUnsupported: this system has no overlays.
	ErrUnsupported = errors.New("overlay workspaces need Linux")
)

// State says how the layers of a session went on.
type State string

// The states of layers.
const (
	Kept      State = "kept" // the session ran, or still does; nothing or a part was applied
	Applied   State = "applied"
	Discarded State = "discarded"
	Expired   State = "expired"
	Empty     State = "empty" // the session changed nothing
)

// Info is what is known of layers without reading them.
type Info struct {
	Version   int       `json:"version"`
	Session   string    `json:"session"`
	Workspace string    `json:"workspace"` // the path, for messages
	Began     time.Time `json:"began"`
	// Device, Inode and Born (nanoseconds, 0 is unknown) tell the folder from
	// any other; devices are numbered anew at each Boot.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Born   int64  `json:"born"`
	Boot   string `json:"boot"`
	// Recorded says that the folder was looked at: nothing ran before.
	Recorded bool `json:"recorded"`
	// State and At say how it went on.
	State State     `json:"state"`
	At    time.Time `json:"at,omitzero"`
	// By is the label of the user who applied or discarded changes last.
	By string `json:"by,omitempty"`
}

// CreateOptions say whose layers they are. All are required.
type CreateOptions struct {
	Session string
	// Path is the workspace's, for messages; Workspace the folder itself, held
	// open. It stays the caller's.
	Path      string
	Workspace *os.File
}
