package sandbox

import (
	"os"
	"path/filepath"
)

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
