package sandbox

import (
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
)

// Paths and identities inside every container. They are part of the contract:
// tools, prompts and tests rely on them.
const (
	// WorkspaceDir is the default mount point of the workspace.
	WorkspaceDir = "/workspace"
	// HomeDir is the commands' home directory, which is empty at the start. It
	// is a scratch directory ([MountScratch]), or a tmpfs with a remote engine.
	HomeDir = "/home/agent"
	// GuestPath is the mount point of the guest's binary, which is read-only.
	GuestPath = "/.caisson/guest"
	// CommandUID and CommandGID are the commands' identity unless the
	// attestation has another one.
	CommandUID = 10001
	CommandGID = 10001
)

// GitMode is the commands' access to the workspace's repository.
type GitMode string

// The git modes; the zero value means GitReadOnly.
const (
	// GitReadOnly makes .git read-only.
	GitReadOnly GitMode = "ro"
	// GitCommit makes .git writable, except files that a host would execute.
	GitCommit GitMode = "commit"
)

// WorkspaceMode says where commands' changes go.
type WorkspaceMode string

// The workspace modes; the zero value means ModeBind.
const (
	// ModeBind mounts the directory itself: commands write to it directly.
	ModeBind WorkspaceMode = "bind"
	// ModeOverlay mounts a copy-on-write view of the directory, which does not
	// change. The upper layer below Workspace.Layers contains what commands
	// write.
	ModeOverlay WorkspaceMode = "overlay"
	// ModeCopy sends a copy of the directory, for backends that can't mount it.
	// The directory does not change; [Sandbox.Collect] brings changes into the
	// upper layer below Workspace.Layers.
	ModeCopy WorkspaceMode = "copy"
)

// KeepsChanges reports whether commands change layers and not the directory.
func (m WorkspaceMode) KeepsChanges() bool { return m == ModeOverlay || m == ModeCopy }

// RootMode is the commands' access to the root file system.
type RootMode string

// The root modes; the zero value means RootReadOnly.
const (
	// RootReadOnly mounts the image read-only.
	RootReadOnly RootMode = "read-only"
	// RootEphemeral mounts a writable layer of this sandbox over the image,
	// which does not change. Destroy removes the layer.
	RootEphemeral RootMode = "ephemeral"
)

// RootBytes bounds the layer of an ephemeral root.
const RootBytes = 4 << 30

// UserPolicy says which user runs commands.
type UserPolicy string

// The user policies; the zero value means UserOwner.
const (
	// UserOwner runs commands as a user without capabilities, whose files
	// belong to the workspace's owner on the host.
	UserOwner UserPolicy = "owner"
	// UserImage runs commands as the image's USER, without capabilities, with
	// that user's groups in the image's /etc/group; see images.FindAccount. Its
	// files in the workspace belong to the workspace's owner. An image whose
	// USER is root is refused, and group 0 is replaced by CommandGID.
	UserImage UserPolicy = "image"
	// UserRoot runs commands as uid 0 in the container with
	// harden.RootCapabilities. It is never root on the host: its files in the
	// workspace belong to the workspace's owner.
	UserRoot UserPolicy = "root"
)

// Workspace is the host directory that is mounted into a sandbox.
type Workspace struct {
	// Path is the absolute host path, for messages and labels. It is never
	// resolved again: mounts are made from Dir.
	Path string
	// Dir is the directory, opened once at the start of the session. The caller
	// closes it, after Destroy.
	Dir *os.File
	// Target is the mount point in the container, which [CheckTarget] must
	// accept; empty means WorkspaceDir. The directory need not exist in the
	// image, except below a top-level directory that the image has. It hides
	// what the image has there. See [Workspace.MountPoint].
	Target string
	// Submounts are the mounts inside the workspace that the user accepts.
	// Create returns ErrInvalid for any other.
	Submounts []string
	// Mode is ModeBind if it is the zero value.
	Mode WorkspaceMode
	// Repositories are the repositories below the top directory, as paths
	// relative to Dir: entries named .git or .hg, and bare repositories. In
	// bind mode they are protected like those at the top. The attestation's
	// Lost names those that can't be.
	Repositories []string
	// Privileged are files, as paths relative to Dir, with privileges that a
	// write through mapped memory would not remove: set-user-ID, set-group-ID
	// or capabilities. In bind mode each is mounted read-only on itself. The
	// attestation's Lost names those that can't be.
	Privileged []string
	// Unguarded leaves repositories and Caisson's own configuration writable,
	// so that they can be renamed. No command may run then.
	Unguarded bool
	// Layers is the directory of an overlay's layers, made by package
	// sandbox/overlay below the state directory. ModeOverlay and ModeCopy
	// require it. It outlives the sandbox, so that a new sandbox can continue
	// where a lost one ended. The caller keeps and removes it.
	Layers string
	// CopyBytes and CopyEntries bound what ModeCopy sends; zero means
	// [DefaultCopyBytes] and [DefaultCopyEntries]. The copy is in memory and
	// may grow to four times CopyBytes, or less if the memory limit demands it.
	CopyBytes, CopyEntries int64
	// Lowers are frozen upper layers between the directory and the layer of an
	// overlay, the top one first: directories below the state directory that
	// nothing writes to while the sandbox exists. See overlay.Layers.Lowers.
	Lowers []string
}

// The default bounds of [ModeCopy].
const (
	DefaultCopyBytes   = 256 << 20
	DefaultCopyEntries = 100_000
)

// Setup is the part of a [Spec] that users choose.
type Setup struct {
	// Image is the image to run.
	Image images.Reference
	// Root is the access to the image's files; the zero value means
	// RootReadOnly. RootEphemeral needs an image other than host.
	Root RootMode
	// Git protects the workspace's repository; the zero value means
	// GitReadOnly.
	Git GitMode
	// User is the user that runs commands; the zero value means UserOwner. A
	// backend that can't do it returns an *IncapableError.
	User UserPolicy
	// Service, if not nil, is a long-lived program that Create starts before it
	// returns. Create returns a *ServiceError if it does not become healthy.
	Service *Service
	// Resources must be valid, see limits.Resources.
	Resources limits.Resources
	// Grace is the time between SIGTERM and SIGKILL on cancellation; zero means
	// [DefaultGrace].
	Grace time.Duration
	// CallerOwnsFiles accepts that files which commands create belong to the
	// user who runs Caisson even if another user owns the workspace.
	CallerOwnsFiles bool
}

// Spec describes a sandbox to create.
type Spec struct {
	// Session is the session's ID (ses_ and a ULID), which names the container.
	Session string
	Setup
	// Workspace is mounted read-write.
	Workspace Workspace
	Mounts    []Mount
	// Homes are the sizes in bytes of the homes of identities 1, 2 and so on,
	// including their directories for temporary files. A home with a size is a
	// separate file system in memory, which counts against
	// Resources.MemoryBytes; the others share /run. Homes has no effect if all
	// commands share one user.
	Homes []int64
	// Dir is a directory of this session alone, below the state directory, for
	// the backend's bundles and mount points. The caller creates and removes
	// it; the backend removes what it put there.
	Dir string
	// Env are variables, as NAME=value, for commands without their own Env.
	// They override the image's. [CheckVariables] must accept them. The values
	// may be secret: they reach only commands, never a label, log or container
	// configuration.
	Env []string
	// Egress opens listeners through which commands can reach what an
	// [EgressHandler] allows; nil means none. The sandbox then implements
	// [EgressServer].
	Egress *EgressPlan
	// Notify, if not nil, is called with a short reason each time Create has to
	// wait: for other starts, memory, or an engine. It must return at once.
	Notify func(waiting string)
}

// DefaultGrace is the default time between SIGTERM and SIGKILL, from the
// dispatcher specification, docs/internal/specification.md §8.
const DefaultGrace = 5 * time.Second

// StopTime is how long a sandbox may take after the grace period to kill a command
// and confirm that no process is left, or to be found lost.
const StopTime = 45 * time.Second

// MountType is the kind of file system of a [Mount].
type MountType string

// The mount types; the zero value means MountBind.
const (
	MountBind MountType = "bind"
	// MountTmpfs mounts an empty file system in memory, which counts against
	// the memory limit.
	MountTmpfs MountType = "tmpfs"
	// MountScratch mounts an empty directory on the host's disk for this
	// sandbox alone. It is made below Spec.Dir and removed by Destroy.
	MountScratch MountType = "scratch"
)

// Mount is an additional directory of a sandbox. Every mount is nosuid and
// nodev, or the attestation's Lost says so.
//
// A bind maps IDs like the workspace: files of the workspace's owner belong to
// the commands, and files that commands make belong to the workspace's owner.
// Create returns ErrInvalid for a host directory that commands must not reach:
// the root directory; a directory that is, contains or lies in the workspace;
// one that is or contains the user's home, the state directory or an engine's
// socket; one in the state directory, except below [CachesDir]; and one in
// /proc, /sys or /dev. It also refuses a directory that contains another mount.
type Mount struct {
	// Target is the mount point, an absolute path in its shortest form; see
	// [CheckMountTarget]. The directory is made if it is missing, but not
	// inside a directory that the image or another bind provides.
	Target string
	// Type is MountBind if it is the zero value.
	Type MountType
	// Path is the host directory of a bind, for messages and the attestation.
	// It is never resolved again: the mount is made from Dir.
	Path string
	// Dir is the host directory of a bind. The caller closes it, after Destroy.
	Dir *os.File
	// ReadOnly forbids changes. Only a bind can be read-only.
	ReadOnly bool
	// Layers, if not "", makes a bind copy-on-write: Dir does not change, and
	// this directory of layers, which is like Workspace.Layers, keeps what
	// commands write. Create returns ErrUnsupported if this process can't mount
	// an overlay.
	Layers string
	// Guarded protects repositories and Caisson's own configuration at the top
	// of a writable bind by Spec.Git, like the workspace's.
	Guarded bool
	// Repositories and Privileged are as in [Workspace], for a guarded bind.
	Repositories, Privileged []string
	// Bytes is the size of a tmpfs, or the bound of a scratch directory, which
	// the sandbox itself does not enforce. Both require it.
	Bytes int64
}

// CachesDir returns the directory below a state directory whose subdirectories
// may be [Spec].Mounts. Nothing else in the state directory may be mounted,
// except [WorkspacesDir].
func CachesDir(stateDir string) string { return filepath.Join(stateDir, "caches") }

// WorkspacesDir returns the directory below a state directory whose
// subdirectories may be workspaces.
func WorkspacesDir(stateDir string) string { return filepath.Join(stateDir, "workspaces") }
