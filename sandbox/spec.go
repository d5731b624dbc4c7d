package sandbox

import (
	"os"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
)

// Paths and identities inside every container. They are part of the contract:
// tools, prompts and tests rely on them.
const (
	// WorkspaceDir is where the workspace is mounted.
	WorkspaceDir = "/workspace"
	// HomeDir is the commands' home folder, a tmpfs.
	HomeDir = "/home/agent"
	// GuestPath is where the guest's binary is mounted, read-only.
	GuestPath = "/.caisson/guest"
	// CommandUID and CommandGID are the identity of commands, unless the
	// attestation says otherwise.
	CommandUID = 10001
	CommandGID = 10001
)

// GitMode says what commands may do to the workspace's repository.
type GitMode string

// The git modes; the zero value means GitReadOnly.
const (
	// GitReadOnly binds .git on itself, wholly read-only.
	GitReadOnly GitMode = "ro"
	// GitCommit leaves it writable but for what a host would execute.
	GitCommit GitMode = "commit"
)

// WorkspaceMode says where what commands write goes.
type WorkspaceMode string

// The workspace modes; the zero value means ModeBind.
const (
	// ModeBind mounts the folder itself: what commands write is there at once.
	ModeBind WorkspaceMode = "bind"
	// ModeOverlay mounts a copy-on-write view of it: the folder is untouched,
	// and what commands write is in the upper layer below Workspace.Layers.
	ModeOverlay WorkspaceMode = "overlay"
)

// Workspace is the host folder that a sandbox works on. Whoever opened Dir
// closes it, after Destroy.
type Workspace struct {
	// Path is the absolute host path, for messages and labels. It is never
	// resolved again: mounts are made from Dir.
	Path string
	// Dir is the folder, opened once when the session began.
	Dir *os.File
	// Submounts names the mounts inside the workspace that the user accepts;
	// any other one makes Create fail with ErrInvalid.
	Submounts []string
	// Mode is bind or overlay; the zero value is bind.
	Mode WorkspaceMode
	// Repositories are those below the top, as paths relative to Dir of what is
	// .git or .hg and of directories that are bare repositories. In bind mode they
	// are protected as those at the top are; what can't be is in the attestation's
	// Lost.
	Repositories []string
	// Unguarded leaves repositories and Caisson's own configuration as writable as
	// anything else, so that they can be renamed. No command may run then.
	Unguarded bool
	// Layers is the folder of an overlay's own layers, made by package
	// sandbox/overlay below the state folder: required with ModeOverlay, unused
	// otherwise. It outlives the sandbox, so that a fresh one goes on where a
	// lost one ended; the caller keeps and removes it.
	Layers string
}

// Spec says what sandbox to make. It is read by Create and not kept.
type Spec struct {
	// Session is the session's id (ses_ and a ULID); it names the container.
	Session string
	// Image is what to run on.
	Image images.Reference
	// Workspace is mounted read-write at WorkspaceDir.
	Workspace Workspace
	// Git protects the workspace's repository; the zero value is read-only.
	Git GitMode
	// Resources must be valid; see limits.Resources.
	Resources limits.Resources
	// Dir is a folder of this session alone, below the state folder, where
	// the backend keeps bundles and mount points. The backend removes what it
	// put there; the caller made the folder and removes it.
	Dir string
	// Grace is the time between SIGTERM and SIGKILL on cancellation; zero
	// means [DefaultGrace].
	Grace time.Duration
	// AllowOwnerRunner accepts that files which commands create belong to the
	// user who runs Caisson although another user owns the workspace.
	AllowOwnerRunner bool
	// Notify is told, in a few words, what Create waits for when it has to
	// wait: for other starts, memory, or an engine. Nil is nobody. It must
	// return at once.
	Notify func(waiting string)
}

// DefaultGrace is the time between SIGTERM and SIGKILL: seed 002's section 8.
const DefaultGrace = 5 * time.Second
