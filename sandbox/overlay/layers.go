package overlay

import (
	"errors"
	"os"
	"time"
)

// Names in the directory of the layers.
const (
	UpperDir = "upper"
	WorkDir  = "work"

	baseFile   = "base.json"
	stampsFile = "stamps.json"
	lowersFile = "lowers.json"
	lowersDir  = "lowers"
	applyFile  = "apply.json"
	doneFile   = "applied.json"
	stateFile  = "state.json"
	lockFile   = "lock"
)

// MaxLowers bounds the frozen layers below the upper one. Each costs every
// lookup in the merged directory a little.
const MaxLowers = 20

// MaxEntries bounds the files and directories that are recorded at the start of
// a session, and its changes. One million is five times a large repository with
// its dependencies.
const MaxEntries = 1_000_000

// MaxTextBytes bounds the bytes of their paths and symlink targets: 134 bytes
// for each of MaxEntries.
const MaxTextBytes = 128 << 20

// Errors of this package; test for them with errors.Is.
var (
	// ErrBusy is the error if the session still runs, or another apply is under
	// way.
	ErrBusy = errors.New("in use")
	// ErrGone is the error if there are no changes any more: they were applied,
	// discarded or expired.
	ErrGone = errors.New("no changes are kept")
	// ErrOther is the error if the directory is not the one of the session.
	ErrOther = errors.New("another directory")
	// ErrTooMany is the error if there are more than MaxEntries changes, or
	// more than MaxTextBytes of their paths and symlink targets. None is
	// applied then.
	ErrTooMany = errors.New("too many changes")
	// ErrPartlyApplied is the error if a part of the changes was applied: the session
	// would not see which of its later changes are already in the workspace.
	ErrPartlyApplied = errors.New("the changes were applied in part")
	// ErrUnsupported is the error on a system without overlays.
	ErrUnsupported = errors.New("overlay workspaces need Linux")
)

// State is the state of the layers of a session.
type State string

// The states of layers.
const (
	Kept      State = "kept" // the session runs or ran; nothing or a part was applied
	Applied   State = "applied"
	Discarded State = "discarded"
	Expired   State = "expired"
	Empty     State = "empty" // the session changed nothing
)

// Info describes layers without their content.
type Info struct {
	Version   int       `json:"version"`
	Session   string    `json:"session"`
	Workspace string    `json:"workspace"` // path, for messages
	Began     time.Time `json:"began"`
	// BaseAt is when the state of the directory was recorded, if that was for
	// another session, which this one is a fork of.
	BaseAt time.Time `json:"base_at,omitzero"`
	// Device, Inode and Born (nanoseconds, 0 if unknown) identify the
	// directory. Device numbers change with each Boot.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Born   int64  `json:"born"`
	Boot   string `json:"boot"`
	// Recorded reports whether the state of the directory was recorded. No
	// command ran before.
	Recorded bool `json:"recorded"`
	// State is the state of the layers, and At the time of its last change.
	State State     `json:"state"`
	At    time.Time `json:"at,omitzero"`
	// By is the label of the user who applied or discarded changes last.
	By string `json:"by,omitempty"`
}

// recordedAt returns the time before which the state of the directory was recorded.
func (i Info) recordedAt() time.Time {
	if i.BaseAt.IsZero() {
		return i.Began
	}
	return i.BaseAt
}

// CreateOptions identifies the session and workspace of the layers. All fields
// are required.
type CreateOptions struct {
	Session string
	// Path is the path of the workspace, for messages. Workspace is its
	// directory, held open; the caller keeps it.
	Path      string
	Workspace *os.File
}
