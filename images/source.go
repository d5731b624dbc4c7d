package images

import (
	"context"
	"io"
	"time"
)

// Source resolves the references whose content must be fetched or unpacked
// first: an image name, an OCI layout, a docker archive, a build. Backends get
// a store as their Source and resolve host and rootfs themselves.
type Source interface {
	// RootFS returns the image's root filesystem, unpacked on this machine and
	// shared read-only by all sessions that use the same content. It stays
	// until release is called, even if the store is pruned. Errors are of this
	// package's classes.
	RootFS(ctx context.Context, ref Reference) (root *RootFS, release func(), err error)
	// OwnedRootFS is RootFS with the owners, groups and modes that the image's
	// files have, for a root that commands may write to. If this process is not
	// root, its user owns all files, and may always read files and write to
	// directories.
	OwnedRootFS(ctx context.Context, ref Reference) (root *RootFS, release func(), err error)
	// Resolve returns the image that a reference names now, without fetching
	// its layers.
	Resolve(ctx context.Context, ref Reference) (Image, error)
	// Archive writes the image as a docker archive, for an engine to load
	// (docker load). It returns the image's id in an engine with the classic
	// image store: the digest of its configuration.
	Archive(ctx context.Context, ref Reference, w io.Writer) (id string, err error)
}

// Engine is the part of an image engine that a store needs: it exports the
// images that it has, and builds. It is implemented by sandbox/docker. Errors
// wrap [ErrNotFound] for an image that the engine doesn't have.
type Engine interface {
	// ImageID returns the id of an image that the engine has.
	ImageID(ctx context.Context, name string) (id string, err error)
	// Save returns an image as a docker archive. The caller closes it.
	Save(ctx context.Context, id string) (io.ReadCloser, error)
	// Build builds the Dockerfile in dir and returns the image's id. An error of
	// the builder is a [*BuildError].
	Build(ctx context.Context, dir string, o BuildOptions) (id string, err error)
}

// BuildOptions configure one build.
type BuildOptions struct {
	// Progress gets the builder's output; nil discards it.
	Progress io.Writer
	// Network opens a network for the commands of the build in dir, if it has any;
	// nil means none.
	Network func(ctx context.Context, dir string) (*BuildNetwork, error)
}

// BuildNetwork is an open network for the commands of one build.
type BuildNetwork struct {
	// Container is the id of a container of the engine, whose network namespace the
	// commands share.
	Container string
	// Proxy has the variables of the proxy in it by their names, such as HTTP_PROXY.
	Proxy map[string]string
	// Close ends the network, removes what was made for it, and returns what was
	// refused, such as "example.com:443 (not_allowed)". It is called once.
	Close func() (refused []string, err error)
}

// Image describes an image that a store knows.
type Image struct {
	// Reference is the reference by which the image was requested.
	Reference Reference
	// Digest is the manifest's digest for an image of a registry or an OCI
	// layout. It equals ID for an image of an engine, an archive or a build,
	// which has no manifest that others know.
	Digest string
	// ID is the digest of the image's configuration, which is its id in an
	// engine with the classic image store.
	ID       string
	Platform string    // such as linux/amd64
	Size     int64     // bytes in the store's directory, including shared layers
	Created  time.Time // from the configuration; zero if missing there
	Pulled   time.Time // when the store last resolved the reference
	Used     time.Time // when a session last used it
	InUse    bool      // by a live session of any process
	Unpacked bool      // its root filesystem is on disk
	Config   Config    // as in [RootFS], once it is unpacked
}

// RootFS is a root filesystem that a backend can mount read-only. It is a
// value: nothing in it must be closed.
type RootFS struct {
	Reference Reference
	// Digest is "sha256:" and 64 hex digits that name the content. For host it
	// covers the layout and the versions that could be read, for rootfs the
	// tree's names, modes, sizes and times, but not every byte.
	Digest string
	// Dir is the directory of a rootfs reference; empty for host. Its entries
	// are mounted through Binds, so nothing is ever written to it.
	Dir string
	// Dirs, Symlinks, Files and Binds make up the root, in this order, over an
	// empty directory.
	Dirs     []Dir
	Symlinks []Symlink
	Files    []File
	Binds    []Bind
	// Masks are directories below a bind that the backend hides under an empty,
	// read-only tmpfs.
	Masks []string
	// Path lists the directories of the host's PATH that the image host has, in
	// order; a command's PATH begins with them.
	Path []string
	// Added are the names of the accounts that were put before the image's own in
	// /etc/passwd and /etc/group.
	Added []string
	// Config is the image's configuration, with the VOLUMEs resolved in the root; for
	// host it has the variables of its toolchains, for rootfs nothing.
	Config Config
	// Warnings are facts that a user should see, such as entries that were left out.
	Warnings []string
}

// Hostname is the host name of every sandbox. No sandbox gets the host's own name. Hosts
// is its /etc/hosts.
const (
	Hostname = "caisson"
	Hosts    = "127.0.0.1 localhost " + Hostname + "\n::1 localhost\n"
)

// Dir is a directory of the skeleton, owned by root.
type Dir struct {
	Path string // absolute in the container
	Mode uint32 // permission bits and sticky, such as 01777
}

// Symlink is a symbolic link of the skeleton.
type Symlink struct {
	Path   string // absolute in the container
	Target string
}

// File is a synthetic file of the skeleton, owned by root, mode 0644.
type File struct {
	Path    string // absolute in the container
	Content []byte
}

// Bind is a host directory or file that is bound read-only, not recursively.
type Bind struct {
	Source string // absolute on the host
	Path   string // absolute in the container; the skeleton holds its mount point
	IsDir  bool
}

// Account is a user, and a group of the same name, in /etc/passwd and /etc/group of a
// root file system.
type Account struct {
	Name     string // letters, digits, - and _
	UID, GID int
	Home     string // absolute in the container
}
