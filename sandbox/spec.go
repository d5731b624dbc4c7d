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
	// WorkspaceDir is the mount point of the workspace, unless Workspace.Target
	// is another one.
	WorkspaceDir = "/workspace"
	// HomeDir is the commands' home directory, which is empty at the start. It is
	// a scratch directory ([MountScratch]), or a tmpfs with a remote engine.
	HomeDir = "/home/agent"
	// GuestPath is the mount point of the guest's binary, which is read-only.
	GuestPath = "/.caisson/guest"
	// CommandUID and CommandGID are the identity of commands, unless the
	// attestation has another one.
	CommandUID = 10001
	CommandGID = 10001
)

// GitMode is the access of commands to the workspace's repository.
type GitMode string

// The git modes; the zero value means GitReadOnly.
const (
	// GitReadOnly makes .git read-only.
	GitReadOnly GitMode = "ro"
	// GitCommit makes .git writable, except for files that a host would
	// execute.
	GitCommit GitMode = "commit"
)

// WorkspaceMode is the destination of what commands write.
type WorkspaceMode string

// The workspace modes; the zero value means ModeBind.
const (
	// ModeBind mounts the directory itself: commands write to it directly.
	ModeBind WorkspaceMode = "bind"
	// ModeOverlay mounts a copy-on-write view of the directory. The directory
	// is not changed; the upper layer below Workspace.Layers contains what
	// commands write.
	ModeOverlay WorkspaceMode = "overlay"
	// ModeCopy sends a copy of the directory, for backends that can't mount it.
	// The directory is not changed; [Sandbox.Collect] brings what commands
	// changed into the upper layer below Workspace.Layers.
	ModeCopy WorkspaceMode = "copy"
)

// KeepsChanges reports whether commands change layers and not the directory.
func (m WorkspaceMode) KeepsChanges() bool { return m == ModeOverlay || m == ModeCopy }

// RootMode is the access of commands to the root file system.
type RootMode string

// The root modes; the zero value means RootReadOnly.
const (
	// RootReadOnly mounts the image read-only.
	RootReadOnly RootMode = "read-only"
	// RootEphemeral mounts a writable layer of this sandbox alone over the
	// image, which is not changed. Destroy removes the layer.
	RootEphemeral RootMode = "ephemeral"
)

// RootBytes bounds the layer of an ephemeral root.
const RootBytes = 4 << 30

// UserPolicy is the choice of the user that commands run as.
type UserPolicy string

// The user policies; the zero value means UserOwner.
const (
	// UserOwner runs commands as a user without any capability, whose files
	// belong to the workspace's owner on the host.
	UserOwner UserPolicy = "owner"
	// UserImage runs commands as the image's USER, without any capability, with
	// the groups that the image's /etc/group has for it; see images.FindAccount.
	// Files that it makes in the workspace belong to the workspace's owner. An
	// image whose USER is root is refused, and the group 0 is replaced by
	// CommandGID.
	UserImage UserPolicy = "image"
	// UserRoot runs commands as uid 0 in the container with the capabilities of
	// harden.RootCapabilities. It is never root of the host: files that root
	// makes in the workspace belong to the workspace's owner.
	UserRoot UserPolicy = "root"
)

// Workspace is the host directory that is mounted into a sandbox. The caller
// that opened Dir must close it, after Destroy.
type Workspace struct {
	// Path is the absolute host path, for messages and labels. It is never
	// resolved again: mounts are made from Dir.
	Path string
	// Dir is the directory, opened once at the start of the session.
	Dir *os.File
	// Target is the mount point in the container, which [CheckTarget] must
	// accept; empty means WorkspaceDir. The directory need not exist in the
	// image, except below a top-level directory that the image has. It hides
	// what the image has there. See [Workspace.MountPoint].
	Target string
	// Submounts are the mounts inside the workspace that the user accepts. Any
	// other one makes Create return ErrInvalid.
	Submounts []string
	// Mode is the mode of the workspace; the zero value means ModeBind.
	Mode WorkspaceMode
	// Repositories are the repositories below the top directory, as paths
	// relative to Dir: of entries named .git or .hg, and of directories that
	// are bare repositories. In bind mode they are protected like those at the
	// top. The attestation's Lost names those that can't be protected.
	Repositories []string
	// Privileged are files, as paths relative to Dir, with privileges that a write through
	// mapped memory would not remove: set-user-ID, set-group-ID or capabilities. In bind
	// mode each is mounted read-only on itself. The attestation's Lost names those that
	// can't be protected.
	Privileged []string
	// Unguarded leaves repositories and Caisson's own configuration writable,
	// so that they can be renamed. No command may run then.
	Unguarded bool
	// Layers is the directory of the layers of an overlay, made by package
	// sandbox/overlay below the state directory. It is required with
	// ModeOverlay and ModeCopy and unused otherwise. It outlives the sandbox, so that a new
	// sandbox can continue where a lost one ended. The caller keeps and removes
	// it.
	Layers string
	// CopyBytes and CopyEntries bound what ModeCopy sends; zero means
	// [DefaultCopyBytes] and [DefaultCopyEntries]. The copy is in memory, and may
	// grow to four times CopyBytes, or less where the limit of memory demands
	// it.
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

// Setup is the part of a [Spec] that users choose and that reaches it unchanged.
type Setup struct {
	// Image is the image to run.
	Image images.Reference
	// Root is the access to the image's files; the zero value means
	// RootReadOnly. RootEphemeral needs an image other than host.
	Root RootMode
	// Git is the protection of the workspace's repository; the zero value means
	// GitReadOnly.
	Git GitMode
	// User is the user that commands run as; the zero value means UserOwner. A
	// backend that can't hold it returns an *IncapableError.
	User UserPolicy
	// Service is a long-lived program that Create starts before it returns; nil
	// means none. Create returns a *ServiceError if it does not become healthy.
	Service *Service
	// Resources are the limits; they must be valid, see limits.Resources.
	Resources limits.Resources
	// Grace is the time between SIGTERM and SIGKILL on cancellation; zero means
	// [DefaultGrace].
	Grace time.Duration
	// CallerOwnsFiles accepts that files which commands create belong to the
	// user who runs Caisson, although another user owns the workspace.
	CallerOwnsFiles bool
}

// Spec describes a sandbox to create. Create reads it and does not keep it.
type Spec struct {
	// Session is the ID of the session (ses_ and a ULID); it names the
	// container.
	Session string
	Setup
	// Workspace is mounted read-write.
	Workspace Workspace
	// Mounts are more directories, in any order.
	Mounts []Mount
	// Homes are the sizes in bytes of the homes of identities 1, 2 and so on, each
	// with its directory for temporary files. A home with a size is a file system
	// in memory of its own, which counts against Resources.MemoryBytes; the others
	// share /run. It has no effect where all commands share one user.
	Homes []int64
	// Dir is a directory of this session alone, below the state directory, for
	// the backend's bundles and mount points. The backend removes what it put
	// there. The caller creates and removes the directory.
	Dir string
	// Env are variables of every command that has no Env of its own, as
	// NAME=value, above those of the image. [CheckVariables] must accept them.
	// Their values may be secret: they reach the commands and nothing else, no
	// label, log or configuration of a container.
	Env []string
	// Egress opens listeners through which commands can reach what an
	// [EgressHandler] allows; nil means none. The sandbox of a Spec with one
	// implements [EgressServer].
	Egress *EgressPlan
	// Notify is called with a short reason each time Create has to wait: for
	// other starts, memory, or an engine. It must return at once, and may be
	// nil.
	Notify func(waiting string)
}

// DefaultGrace is the default time between SIGTERM and SIGKILL, from the
// dispatcher specification, docs/internal/specification.md §8.
const DefaultGrace = 5 * time.Second

// MountType is the kind of file system of a [Mount].
type MountType string

// The mount types; the zero value means MountBind.
const (
	// MountBind mounts a directory of the host.
	MountBind MountType = "bind"
	// MountTmpfs mounts an empty file system in memory. Its pages count against
	// the memory limit.
	MountTmpfs MountType = "tmpfs"
	// MountScratch mounts an empty directory on the host's disk that belongs to
	// this sandbox alone. It is made below Spec.Dir and removed by Destroy.
	MountScratch MountType = "scratch"
)

// Mount is one more directory of a sandbox. Every mount is nosuid and nodev, or
// the attestation lists that as lost.
//
// A bind has the workspace's mapping of ids: files of the workspace's owner
// belong to the commands, and what commands make belongs to the workspace's
// owner. Create returns ErrInvalid for a host directory that commands must not
// reach: the root directory; a directory that is, contains or lies in the
// workspace; one that is or contains the user's home, the state directory or an
// engine's socket; one in the state directory, except below [CachesDir]; and
// one in /proc, /sys or /dev. It also refuses a directory in which another file
// system is mounted.
type Mount struct {
	// Target is the mount point, an absolute path in its shortest form. It
	// can't be a directory that the sandbox mounts itself, nor be above one,
	// nor lie in the workspace. The directory is made if it is missing, but not
	// inside a directory that the image or another bind provides.
	Target string
	// Type is the type; the zero value means MountBind.
	Type MountType
	// Path is the host directory of a bind, for messages and the attestation.
	// It is never resolved again: the mount is made from Dir.
	Path string
	// Dir is the host directory of a bind. The caller that opened it must close
	// it, after Destroy.
	Dir *os.File
	// ReadOnly forbids changes. Only a bind can be read-only.
	ReadOnly bool
	// Layers makes a bind copy-on-write: Dir is not changed, and what commands
	// write is kept in this directory of layers, which is like
	// Workspace.Layers. "" mounts Dir itself. Create returns ErrUnsupported
	// where this process can't mount an overlay.
	Layers string
	// Guarded protects repositories and Caisson's own configuration at the top
	// of a writable bind as those of the workspace, by Spec.Git.
	Guarded bool
	// Repositories and Privileged are those of a guarded bind, as in [Workspace].
	Repositories, Privileged []string
	// Bytes is the size of a tmpfs, or the bound of a scratch directory, which
	// the sandbox itself does not enforce. It is required for both.
	Bytes int64
}

// CachesDir returns the directory below a state directory whose subdirectories
// may be mounted as [Spec].Mounts, and WorkspacesDir that whose subdirectories may be
// workspaces. Nothing else of the state directory may be mounted.
func CachesDir(stateDir string) string { return filepath.Join(stateDir, "caches") }

// WorkspacesDir is described at [CachesDir].
func WorkspacesDir(stateDir string) string { return filepath.Join(stateDir, "workspaces") }
