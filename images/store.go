package images

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// StoreOptions say where a [Store] keeps images and where it gets them.
type StoreOptions struct {
	// Dir is the cache folder, absolute; it is made if it is missing, for its
	// owner alone. Any number of stores, in any number of processes, may share it.
	Dir string
	// Platform is what images must be for, as os/architecture; empty is linux and
	// the architecture of this program. It is the engine's where an engine on
	// another machine runs them.
	Platform string
	// Engine is asked first for an image's name, and builds; nil is none.
	Engine Engine
	// Keychain has the registries' credentials; nil is the user's Docker
	// configuration (authn.DefaultKeychain), which may run the credential
	// helper that it names.
	Keychain authn.Keychain
	// PlainHTTP are the registries, as host or host:port, that are spoken to
	// without TLS. Loopback needs no entry, everything else does.
	PlainHTTP []string
	// Transport speaks to registries; nil is one with the proxies of the
	// environment and short timeouts.
	Transport http.RoundTripper
	// ResolveTimeout bounds the time until a registry has said what a name
	// names; zero is 8 s. Downloads are bounded by IdleTimeout alone.
	ResolveTimeout time.Duration
	// IdleTimeout is how long a download may stand still; zero is 30 s.
	IdleTimeout time.Duration
	// Buildctl and Buildah are the builders for build:DIR where there is no
	// engine, as absolute paths that the caller found outside of any workspace;
	// empty is none. The first that is named is used.
	Buildctl, Buildah string
	// BuilderEnv is the whole environment of such a builder, as NAME=value.
	BuilderEnv []string
	// Accounts are put before the entries of /etc/passwd and /etc/group of
	// every image, so that commands have a name; nil is agent, 10001:10001,
	// at home in /home/agent.
	Accounts []Account
	// Limits bound what unpacking may cost.
	Limits Limits
	// Progress gets reports, one at a time; it must return soon. Nil discards.
	Progress func(Progress)
}

// Account is a user and group of the same name that a store adds to images.
type Account struct {
	Name     string // letters, digits, - and _
	UID, GID int
	Home     string // absolute in the container
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

// Pruned is what [Store.Remove] and [Store.Prune] did.
type Pruned struct {
	Images []Image // forgotten
	Bytes  int64   // freed on disk
	// Kept are the images that would have gone if they were not in use.
	Kept []Image
	// Leftovers counts what dead processes left half made and is gone now.
	Leftovers int
}

// Store is a cache of images, shared by all sessions of a user: layers and
// unpacked root filesystems, named by their content, and what each reference
// was found to name. It is safe for concurrent use and needs no closing.
// Whatever is killed, an entry is complete or absent.
//
// An image's name is looked up in the engine first, where there is one, then in
// what was pinned: the first use of a name asks its registry and pins the
// digest; later uses take it without asking, until [Store.Pull] does.
type Store struct {
	o StoreOptions
}

var _ Source = (*Store)(nil)

// NewStore opens the store in o.Dir and makes it if it is missing. It fails
// with [ErrInvalid] for options that can't be, and for a folder that another
// user owns or could write to.
func NewStore(o StoreOptions) (*Store, error) { return &Store{o}, nil }

// Resolve says what ref names now, without fetching its layers: as
// [Store.RootFS] would take it.
func (s *Store) Resolve(ctx context.Context, ref Reference) (Image, error) {
	return Image{}, ErrUnsupported
}

// RootFS is [Source.RootFS]. What isn't cached is fetched and unpacked, once,
// however many ask for it; the others wait. Cancelling ctx gives up waiting and
// fetching and leaves nothing half made. It needs Linux.
//
// Errors wrap [ErrInvalid], [ErrUnsupported], [ErrNotFound], [ErrUnauthorized],
// [ErrUnreachable], [ErrDigest] or [ErrRefused] (a [*LayerError]).
func (s *Store) RootFS(ctx context.Context, ref Reference) (root *RootFS, release func(), err error) {
	return nil, nil, ErrUnsupported
}

// Archive is [Source.Archive]: layers go out as they are stored, checked
// against their digests, and nothing is tagged. After an error what was written
// is worthless.
func (s *Store) Archive(ctx context.Context, ref Reference, w io.Writer) (id string, err error) {
	return "", ErrUnsupported
}

// Pull asks anew what ref names, pins it, and fetches and unpacks it. Sessions
// that run keep what they have.
func (s *Store) Pull(ctx context.Context, ref Reference) (Image, error) {
	return Image{}, ErrUnsupported
}

// List gives the images that the store knows, by reference.
func (s *Store) List(ctx context.Context) ([]Image, error) { return nil, ErrUnsupported }

// Remove forgets ref and frees what no other image needs. It fails with
// [ErrNotFound], and with [ErrInUse] while a session uses it.
func (s *Store) Remove(ctx context.Context, ref Reference) (Pruned, error) {
	return Pruned{}, ErrUnsupported
}

// Prune forgets the images that no session has used for unused, and frees
// what no image needs and what dead processes left. What is in use stays.
func (s *Store) Prune(ctx context.Context, unused time.Duration) (Pruned, error) {
	return Pruned{}, ErrUnsupported
}
