package images

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Source resolves references whose content must be fetched or unpacked first:
// image names, OCI layouts, docker archives, builds. A store is one. Backends
// resolve host and rootfs themselves.
type Source interface {
	// RootFS returns the image's root filesystem, unpacked on this machine and
	// shared read-only by all sessions that use the same content. It stays
	// until release is called, even if the store is pruned. Errors are of this
	// package's classes.
	RootFS(ctx context.Context, ref Reference) (root *RootFS, release func(), err error)
	// OwnedRootFS is RootFS with the image's owners, groups and modes, for a
	// root that commands may write to. If this process is not root, its user
	// owns all files, and may always read files and write to directories.
	OwnedRootFS(ctx context.Context, ref Reference) (root *RootFS, release func(), err error)
	// Resolve returns the image that a reference names now, without fetching
	// its layers.
	Resolve(ctx context.Context, ref Reference) (Image, error)
	// Archive writes the image as a docker archive, for an engine to load
	// (docker load). It returns the image's ID in an engine with the classic
	// image store: the configuration's digest.
	Archive(ctx context.Context, ref Reference, w io.Writer) (id string, err error)
}

// Engine is the part of an image engine that a store needs, implemented by
// sandbox/docker. Errors wrap [ErrNotFound] if the engine does not have an
// image.
type Engine interface {
	// ImageID returns an image's ID.
	ImageID(ctx context.Context, name string) (id string, err error)
	// Save returns an image as a docker archive, which the caller closes.
	Save(ctx context.Context, id string) (io.ReadCloser, error)
	// Build builds the Dockerfile in dir and returns the image's ID. The
	// builder's error is a [*BuildError].
	Build(ctx context.Context, dir string, o BuildOptions) (id string, err error)
}

// BuildOptions configure a build.
type BuildOptions struct {
	Progress io.Writer
	// Network opens a network for the build's commands, if it has any; nil
	// means no network.
	Network func(ctx context.Context, dir string) (*BuildNetwork, error)
}

// BuildNetwork is a network for one build's commands.
type BuildNetwork struct {
	// Container is the ID of an engine's container whose network namespace the
	// commands share.
	Container string
	// Proxy has the proxy's variables by name, such as HTTP_PROXY.
	Proxy map[string]string
	// Close removes the network and returns what was refused, such as
	// "example.com:443 (not_allowed)". It is called once.
	Close func() (refused []string, err error)
}

// Image is an image in a store.
type Image struct {
	// Reference is the requested reference.
	Reference Reference
	// Digest is the manifest's digest for an image in a registry or OCI layout.
	// For an engine's image, an archive or a build, which has no public
	// manifest, it equals ID.
	Digest string
	// ID is the digest of the image's configuration, which is its ID in an
	// engine with the classic image store.
	ID       string
	Platform string    // such as linux/amd64
	Size     int64     // bytes in the store's directory, including shared layers
	Created  time.Time // according to the configuration; zero if unknown
	Pulled   time.Time // when the store last resolved the reference
	Used     time.Time // when a session last used it
	InUse    bool      // by any process's live session
	Unpacked bool      // its root filesystem is on disk
	Config   Config    // as in [RootFS], if unpacked
}

// RootFS is a root filesystem that a backend can mount read-only. It is a value
// and need not be closed.
type RootFS struct {
	Reference Reference
	// Digest is "sha256:" and 64 hex digits. For host it covers the layout and
	// the versions that could be read, for rootfs the tree's names, modes,
	// sizes and times, but not every byte.
	Digest string
	// Dir is a rootfs reference's directory; empty for host. Its entries are
	// mounted through Binds, so nothing is ever written to it.
	Dir string
	// Dirs, Symlinks, Files and Binds, in this order, make up the root over an
	// empty directory.
	Dirs     []Dir
	Symlinks []Symlink
	Files    []File
	Binds    []Bind
	// Masks are directories below a bind that the backend hides under an empty,
	// read-only tmpfs.
	Masks []string
	// Path lists the directories on the host's PATH that the image host has; a
	// command's PATH begins with them.
	Path []string
	// Added are the names of the accounts that precede the image's own in
	// /etc/passwd and /etc/group.
	Added []string
	// Config is the image's configuration, with VOLUMEs resolved in the root.
	// For host it has only its toolchains' variables, for rootfs nothing.
	Config Config
	// Warnings are facts for the user, such as entries that were left out.
	Warnings []string
}

// Hostname is the host name of every sandbox, to hide the host's own. Hosts is
// its /etc/hosts.
const (
	Hostname = "caisson"
	Hosts    = "127.0.0.1 localhost " + Hostname + "\n::1 localhost\n"
)

// Dir is a directory in the skeleton, owned by root.
type Dir struct {
	Path string // absolute in the container
	Mode uint32 // permission bits and sticky, such as 01777
}

// Symlink is a symbolic link in the skeleton.
type Symlink struct {
	Path   string // absolute in the container
	Target string
}

// File is a synthetic file in the skeleton, owned by root, with mode 0644.
type File struct {
	Path    string // absolute in the container
	Content []byte
}

// Bind is a host directory or file that is bound read-only, not recursively.
type Bind struct {
	Source string // absolute on the host
	Path   string // absolute in the container; the skeleton has its mount point
	IsDir  bool
}

// Account is a user, and a group of the same name, in a root filesystem's
// /etc/passwd and /etc/group.
type Account struct {
	Name     string // letters, digits, - and _
	UID, GID int
	Home     string // absolute in the container
}

// AccountLines returns the accounts' lines for /etc/passwd and /etc/group.
func AccountLines(accounts []Account) (passwd, group []byte) {
	for _, a := range accounts {
		passwd = fmt.Appendf(passwd, "%s:x:%d:%d:%s:%s:/bin/sh\n", a.Name, a.UID, a.GID, a.Name, a.Home)
		group = fmt.Appendf(group, "%s:x:%d:\n", a.Name, a.GID)
	}
	return passwd, group
}
