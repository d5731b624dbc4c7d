package images

import (
	"context"
	"io"
	"time"
)

// Source resolves the references whose content has to be fetched or unpacked
// first: an image name, an OCI layout, a docker archive, a build. A store is
// the one that backends are given; they resolve host and rootfs themselves.
type Source interface {
	// RootFS gives the image's root filesystem, unpacked on this machine and
	// shared, read-only, by all who ask for the same content. It stays until
	// release is called, whatever is pruned meanwhile. The errors are this
	// package's.
	RootFS(ctx context.Context, ref Reference) (root *RootFS, release func(), err error)
	// Resolve says what a reference names now, without fetching its layers.
	Resolve(ctx context.Context, ref Reference) (Image, error)
	// Archive writes the image as a docker archive, for an engine to load
	// (docker load), and gives the id that an engine of the classic image store
	// knows it by: the digest of its configuration.
	Archive(ctx context.Context, ref Reference, w io.Writer) (id string, err error)
}

// Engine is what an image engine can do for a store: hand out the images that
// it has, and build. It is implemented by sandbox/docker. Errors wrap
// [ErrNotFound] for an image that the engine doesn't have.
type Engine interface {
	// ImageID is the id of an image that the engine has.
	ImageID(ctx context.Context, name string) (id string, err error)
	// Save gives an image as a docker archive; the caller closes it.
	Save(ctx context.Context, id string) (io.ReadCloser, error)
	// Build builds the Dockerfile in dir, without network unless the engine's
	// own configuration says otherwise, and gives the image's id. Progress gets
	// the builder's words; nil discards them.
	Build(ctx context.Context, dir string, progress io.Writer) (id string, err error)
}

// Image is what a store knows of an image.
type Image struct {
	// Reference is what the image was asked for as.
	Reference Reference
	// Digest is the manifest's for an image of a registry or an OCI layout, the
	// same as ID for an image of an engine, of an archive and of a build, which
	// have no manifest that others would know them by.
	Digest string
	// ID is the digest of the image's configuration: the id that an engine of
	// the classic image store gives it.
	ID       string
	Platform string    // such as linux/amd64
	Size     int64     // bytes below the store's folder, shared layers included
	Created  time.Time // as the image says; zero if it doesn't
	Pulled   time.Time // when the store last asked for the digest
	Used     time.Time // when a session last took it
	InUse    bool      // by a session that lives now, of whatever process
	Unpacked bool      // its root filesystem is on disk
	Volumes  []string  // as in [RootFS]
	Env      []string  // as in [RootFS]
}
