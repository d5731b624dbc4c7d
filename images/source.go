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
